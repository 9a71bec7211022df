// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

// LibTorch's C++ modules have no hooks. A guard is the place where Lockstep learns that unmodified code uses
// a parameter: the tensor has an additional dispatch key, whose boxed fallback calls the guard before each
// operator that takes the tensor, or a view of it, in forward and backward.
namespace lockstep::nn {

// Called before an operator uses the storage that it owns. Threads: any that runs operators.
class StorageGuard {
 public:
  // Some kernels, such as those of LSTM, are not for tensors with additional keys.
  enum class Views { guarded, plain };

  virtual ~StorageGuard() = default;
  // `op`: e.g. "aten::linear". `writes`: whether the operator changes the tensor. Returns whether views that
  // the operator makes have this guard, too. With plain views, the operator sees the tensor without its key.
  virtual Views before_use(std::string_view op, bool writes) = 0;
  // After before_use() of all arguments: runs the operator in another way. `stack` ends with the arguments,
  // which the results replace. Returns false, without a change, for the operator as it is.
  virtual bool run(const c10::OperatorHandle& op, torch::jit::Stack& stack);
};

// Gives the tensor a storage of its own that owns `guard`, with `bytes` at `data`, which may be nullptr. The
// tensor's shape and strides stay. The guard is destroyed with the storage. Returns the guard.
StorageGuard* guard_storage(const at::Tensor& tensor, std::unique_ptr<StorageGuard> guard, void* data,
                            std::size_t bytes);
// Moves the storage to other memory. `data` may be nullptr; an operator that reads it then throws.
void set_guarded_memory(const at::Tensor& tensor, void* data, std::size_t bytes);
// The guard of the tensor's storage, or nullptr.
StorageGuard* guard_of(const at::Tensor& tensor);
// Whether operators that take the tensor call its guard: not for views that are plain.
bool is_guarded(const at::Tensor& tensor);
// A view that is plain.
at::Tensor unguarded(const at::Tensor& tensor);

// While it lives, operators of this thread call no guards.
class WithoutGuards {
 public:
  WithoutGuards();
  ~WithoutGuards();
  WithoutGuards(const WithoutGuards&) = delete;
  WithoutGuards& operator=(const WithoutGuards&) = delete;

 private:
  bool was_excluded_;
};

}  // namespace lockstep::nn
