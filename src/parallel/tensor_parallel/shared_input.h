// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tensor_parallel/redistribute.h"

namespace lockstep::tensor_parallel {

// The converted input of a module, for all its layers that get the same tensor: one conversion, and one of
// the sum of its gradients. Whether a layer converts depends only on the calls of the layers, which are the
// same on all ranks.
class SharedInput {
 public:
  explicit SharedInput(const Route& route) : route_(route) {}

  // One more layer calls convert().
  void add_layer() { ++layers_; }
  int layers() const { return layers_; }
  at::Tensor convert(const at::Tensor& input, const ProcessGroup& group);

 private:
  bool is_result_of(const at::Tensor& input) const;

  Route route_;
  int layers_ = 0;
  int uses_ = 0;  // of the result
  // Until all layers have used the result, or one of them gets another input.
  at::Tensor source_, result_;
  std::uint32_t version_ = 0;  // of the source
};

}  // namespace lockstep::tensor_parallel
