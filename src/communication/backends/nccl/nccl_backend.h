// SPDX-License-Identifier: BSD-3-Clause
// LibTorch's two process groups over NCCL, in one form for NcclBackend, and all differences between their
// releases: docs/libtorch-versions.md lists them. The only file that includes NCCL's header.
#pragma once

#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/headeronly/version.h>

#include <lockstep/base/mutex.h>
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14)
#define LOCKSTEP_HAS_NCCL2
#include <torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.hpp>
#endif

#include <lockstep/base/error.h>

#include "backends/registry.h"
#include "device/libtorch_versions.h"

namespace lockstep::backends {

using NcclWorkPtr = c10::intrusive_ptr<c10d::Work>;
using NcclGroupOptions = c10d::ProcessGroupNCCL::Options;

// c10d::ProcessGroupNCCL, PyTorch's "nccl" before 2.15. Its own error handling would end the process at the
// first failure; Lockstep aborts the communicators and throws.
class Nccl1 : public c10d::ProcessGroupNCCL {
 public:
  struct Environment {};  // of the constructor
  static constexpr bool kPythonConnectsAtOnce = false;

  Nccl1(const BackendRequest& request, c10::intrusive_ptr<Options> options)
      : c10d::ProcessGroupNCCL(request.store, request.rank, request.size, std::move(options)) {
    asyncErrorHandling_ = c10d::NoHandling;
    blockingWait_ = false;
  }

  static bool issued(const c10d::Work& work) { return dynamic_cast<const WorkNCCL*>(&work) != nullptr; }
  // The copy holds no outputs.
  static NcclWorkPtr observer_of(const NcclWorkPtr& work) {
    return c10::make_intrusive<WorkNCCL>(dynamic_cast<const WorkNCCL&>(*work));
  }
  static void free_tensors(c10d::Work& /*work*/) {}
};

#ifdef LOCKSTEP_HAS_NCCL2

// The environment variable for this object's lifetime.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const char* value)
      : name_(std::move(name)), before_(c10::utils::get_env(name_.c_str())), changed_(before_ != value) {
    if (changed_) c10::utils::set_env(name_.c_str(), value);
  }
  ~ScopedVariable() {
    if (!changed_) return;
    before_ ? c10::utils::set_env(name_.c_str(), before_->c_str()) : c10::utils::unset_env(name_.c_str());
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
  bool changed_;
};

// A call of c10d::nccl2::ProcessGroupNCCL, for another thread.
class Nccl2Observer : public c10d::Work {
 public:
  explicit Nccl2Observer(NcclWorkPtr work) : work_(std::move(work)) {}
  bool isCompleted() override { return work_->isCompleted(); }
  // 2.14's works keep none.
  std::exception_ptr exception() const override {
    if (work_->isSuccess()) return {};
    const auto failure = work_->exception();
    return failure ? failure : std::make_exception_ptr(Error("NCCL reports that the operation failed"));
  }

 private:
  NcclWorkPtr work_;
};

// c10d::nccl2::ProcessGroupNCCL, PyTorch's "nccl" from 2.15 on.
class Nccl2 : public c10d::nccl2::ProcessGroupNCCL {
 public:
  // What Nccl1 sets in its constructor is private and constant here, and read from these variables. One
  // constructor at a time: ranks may be threads of one process.
  class Environment {
    static inline Mutex one_at_a_time;
    const MutexLock lock_{one_at_a_time};
    ScopedVariable handling_{c10d::TORCH_NCCL_ASYNC_ERROR_HANDLING.front(), "0"};
    ScopedVariable waiting_{c10d::TORCH_NCCL_BLOCKING_WAIT.front(), "0"};
  };
  static constexpr bool kPythonConnectsAtOnce = libtorch::is_at_least(2, 15);

  // REQUIRES: an Environment.
  Nccl2(const BackendRequest& request, c10::intrusive_ptr<Options> options)
      : c10d::nccl2::ProcessGroupNCCL(request.store, request.rank, request.size, std::move(options)) {}

  const std::string getBackendName() const override { return "nccl"; }

  // LibTorch does not export the type information that a dynamic_cast needs.
  static bool issued(const c10d::Work& work) {
    return std::strcmp(typeid(work).name(), "N4c10d5nccl28WorkNCCLE") == 0;
  }
  static NcclWorkPtr observer_of(const NcclWorkPtr& work) { return c10::make_intrusive<Nccl2Observer>(work); }
  // The inputs are the group's, which frees them when the call has ended.
  static void free_tensors(c10d::Work& work) { static_cast<c10d::nccl2::WorkNCCL&>(work).setOutputs({}); }
};

#else
using Nccl2 = Nccl1;
#endif

}  // namespace lockstep::backends
