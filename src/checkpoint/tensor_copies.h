// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::checkpointing {

/// Memory for copies of tensors, used again by the next save. For one thread.
class TensorCopies {
 public:
  /// A copy on the CPU in place number `index`; what was there is gone.
  at::Tensor take(std::size_t index, const at::Tensor& tensor);
  /// Gives back the memory of place number `count` and beyond.
  void keep(std::size_t count);

 private:
  std::vector<at::Tensor> copies_;
};

}  // namespace lockstep::checkpointing
