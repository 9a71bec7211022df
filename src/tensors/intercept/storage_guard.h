// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

// LibTorch's C++ modules have no hooks. Guards are the place where Lockstep learns that unmodified code uses
// a parameter: the tensor has additional dispatch keys, whose boxed fallbacks call the guards of its storage
// before each operator that takes the tensor, or a view of it, in forward and backward. A storage has at most
// one guard of each kind.
namespace lockstep::intercept {

// Runs operators in another way. Comes before the MemoryGuard. Threads: any that runs operators.
class OperatorGuard {
 public:
  virtual ~OperatorGuard() = default;
  // `stack` ends with the arguments, which the results replace. Returns false, without a change, for the
  // operator as it is.
  virtual bool run(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
};

// Called before an operator uses the memory of the storage. Threads: any that runs operators.
class MemoryGuard {
 public:
  // Some kernels, such as those of LSTM, are not for tensors with additional keys.
  enum class Views { guarded, plain };

  virtual ~MemoryGuard() = default;
  // `op`: e.g. "aten::linear". `writes`: whether the operator changes the tensor. Returns whether views that
  // the operator makes have this guard, too. With plain views, the operator sees the tensor without its key.
  virtual Views before_use(std::string_view op, bool writes) = 0;
};

// Gives the tensor's storage a guard. The guard is destroyed with the storage, or when another takes its
// place. A tensor without a guard gets a storage of its own, which points at nothing.
void set_guard(const at::Tensor& tensor, std::unique_ptr<OperatorGuard> guard);
void set_guard(const at::Tensor& tensor, std::unique_ptr<MemoryGuard> guard);
// Points the storage of a tensor with a guard at other memory, which it owns from then on. Undefined: at
// nothing; an operator that reads it then throws.
void set_guarded_memory(const at::Tensor& tensor, const at::Tensor& memory);
// What set_guarded_memory() got; undefined: nothing.
at::Tensor guarded_memory(const at::Tensor& tensor);

// Every access to the memory of the tensor's storage throws from then on, also without an operator.
void forbid_access(const at::Tensor& tensor, const std::string& why);
// Why, for parameters that ranks share, after a failure in a step.
std::string why_forbidden(const std::string& failure);

// The guard of the tensor's storage, or nullptr.
OperatorGuard* operator_guard_of(const at::Tensor& tensor);
MemoryGuard* memory_guard_of(const at::Tensor& tensor);
bool has_guard(const at::Tensor& tensor);
// Takes the guard out of the storage.
std::unique_ptr<OperatorGuard> take_operator_guard(const at::Tensor& tensor);

// Whether operators that take the tensor call its OperatorGuard: not for views without its key.
bool is_operator_guarded(const at::Tensor& tensor);
// A view without the key of the OperatorGuard.
at::Tensor without_operator_guard(const at::Tensor& tensor);

// While it lives, operators of this thread call no guards, or no OperatorGuards.
class WithoutGuards {
 public:
  enum class Kinds { all, operators };

  explicit WithoutGuards(Kinds kinds = Kinds::all);
  ~WithoutGuards();
  WithoutGuards(const WithoutGuards&) = delete;
  WithoutGuards& operator=(const WithoutGuards&) = delete;

 private:
  bool excluded_operators_;
  bool excluded_memory_;
};

// While it lives, all operators of this thread call the guard, after the guards of their arguments.
class OperatorScope {
 public:
  explicit OperatorScope(OperatorGuard& guard);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

 private:
  OperatorGuard* outer_;
};

}  // namespace lockstep::intercept
