// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/thread_pool.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/base/mutex.h>
#include <lockstep/nn/data_parallel.h>

#include "device/module_snapshot.h"
#include "modules/named_tensors.h"

namespace lockstep::nn {

// Sums the gradients of several replicas in the replicas' order, as they arrive: the thread that completes
// the sum adds, while its own gradient is still in the cache. Safe from any thread.
class GradientSums {
 public:
  GradientSums(std::size_t parameters, std::size_t replicas);

  // Adds a gradient. A replica may add several for one parameter.
  void add(std::size_t replica, std::size_t parameter, at::Tensor gradient);
  // After the last add(): [i] is the sum of parameter i, undefined if no replica had a gradient.
  std::vector<at::Tensor> take();

 private:
  struct Slot {
    Mutex mutex;
    std::size_t next LOCKSTEP_GUARDED_BY(mutex) = 0;             // the replica that is added next
    at::Tensor sum LOCKSTEP_GUARDED_BY(mutex);                   // of those before it
    std::vector<at::Tensor> waiting LOCKSTEP_GUARDED_BY(mutex);  // of those from it on
  };
  static void add_next(Slot& slot) LOCKSTEP_REQUIRES(slot.mutex);

  std::size_t replicas_;
  std::vector<Slot> slots_;
};

// A module's replicas and the threads that run them.
class Replicas {
 public:
  using Make = std::function<std::shared_ptr<torch::nn::Module>()>;
  // `is_replica`: whether a module has the original's type.
  Replicas(std::shared_ptr<torch::nn::Module> original, const std::vector<c10::Device>& devices,
           const Make& make, const std::function<bool(const torch::nn::Module&)>& is_replica);

  std::size_t size() const { return replicas_.size(); }
  const c10::Device& device(std::size_t i) const { return replicas_[i].device; }
  bool all_on_cpu() const;
  torch::nn::Module& module(std::size_t i) { return *replicas_[i].module; }

  // Updates the first `count` replicas to the original's parameters, buffers and modes.
  void update(std::size_t count);

  // The original's parameters, each once.
  const std::vector<modules::NamedTensor>& parameters() const { return parameters_; }

  // While it lives, gradients of the replicas' parameters go to `sums` and not to .grad. One at a time.
  [[nodiscard]] auto collect_gradients(GradientSums& sums) {
    *sums_ = &sums;
    return c10::make_scope_exit([slot = sums_] { *slot = nullptr; });
  }

  // Runs job(i) for the first `count` replicas in parallel, each in its thread with the caller's LibTorch
  // state and its own device, share of the cores and generator. Throws Error naming the first that failed.
  void run(std::size_t count, const std::function<void(std::size_t)>& job);

  // Seeds the replicas' generators from the default generator.
  void seed();

 private:
  struct Parameter {
    at::Tensor tensor;
    std::size_t original;  // its index in parameters()
  };
  struct Replica {
    c10::Device device;
    std::shared_ptr<torch::nn::Module> module;
    std::vector<Parameter> parameters;
    at::Generator generator;
    // Its own, with the state that LibTorch and OpenMP keep for a thread.
    std::unique_ptr<c10::ThreadPool> thread;
  };
  struct CallerState;
  void check_module() const;
  void add(c10::Device device, std::shared_ptr<torch::nn::Module> module);
  void update_buffers(std::size_t i);
  void update_modes(torch::nn::Module& replica) const;

  std::shared_ptr<torch::nn::Module> original_;
  device::ModuleSnapshot known_;
  std::vector<modules::NamedTensor> parameters_;
  std::vector<Replica> replicas_;
  std::shared_ptr<GradientSums*> sums_ = std::make_shared<GradientSums*>(nullptr);  // shared with hooks
};

}  // namespace lockstep::nn
