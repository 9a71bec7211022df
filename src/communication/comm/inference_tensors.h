// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "comm/call.h"

namespace lockstep::comm {

// Backends write on threads of their own, where LibTorch refuses writes to tensors of inference mode. While
// this object lives, the call has ordinary tensors over the same memory in their place.
class InferenceTensors {
 public:
  explicit InferenceTensors(Call& call) {
    if (are_any(call.inputs) || are_any(call.outputs)) [[unlikely]]
      replace(call);
  }
  InferenceTensors(const InferenceTensors&) = delete;
  InferenceTensors& operator=(const InferenceTensors&) = delete;

 private:
  struct Ordinary {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
  };

  static bool are_any(at::TensorList tensors) {
    return std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return tensor.is_inference(); });
  }

  static std::vector<at::Tensor> ordinary(at::TensorList tensors) {
    const c10::InferenceMode off(false);
    std::vector<at::Tensor> all;
    for (const auto& tensor : tensors) {
      all.push_back(at::empty({0}, tensor.options())
                        .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides()));
    }
    return all;
  }

  C10_NOINLINE void replace(Call& call) {
    ordinary_ = std::make_unique<Ordinary>();
    if (are_any(call.inputs)) call.inputs = ordinary_->inputs = ordinary(call.inputs);
    if (are_any(call.outputs)) call.outputs = ordinary_->outputs = ordinary(call.outputs);
  }

  std::unique_ptr<Ordinary> ordinary_;
};

}  // namespace lockstep::comm
