// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "tensor_parallel/redistribute.h"

namespace lockstep::tensor_parallel {

// The converted input of a module, for all its layers that get the same tensor: one conversion, and one of
// the sum of its gradients.
class SharedInput {
 public:
  explicit SharedInput(const Route& route) : route_(route) {}

  // One more layer calls convert().
  void add_layer() { ++layers_; }
  int layers() const { return layers_; }
  at::Tensor convert(const at::Tensor& input, const ProcessGroup& group);

 private:
  using Weak = std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>;

  at::Tensor earlier_result(const at::Tensor& input) const;

  Route route_;
  int layers_ = 0;
  Weak source_;
  std::int64_t version_ = 0;  // of the source
  bool has_history_ = false;
  Weak result_;
  // Without gradients nothing else has the result between two layers. It is kept until all layers have used
  // it, or one of them gets another input.
  at::Tensor kept_;
  int uses_ = 0;
};

}  // namespace lockstep::tensor_parallel
