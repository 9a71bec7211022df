// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
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
    replace(call.inputs, inputs_);
    replace(call.outputs, outputs_);
  }
  InferenceTensors(const InferenceTensors&) = delete;
  InferenceTensors& operator=(const InferenceTensors&) = delete;

 private:
  static void replace(at::TensorList& tensors, std::vector<at::Tensor>& ordinary) {
    if (std::ranges::none_of(tensors, [](const at::Tensor& tensor) { return tensor.is_inference(); })) return;
    const c10::InferenceMode off(false);
    for (const auto& tensor : tensors) {
      ordinary.push_back(
          at::empty({0}, tensor.options())
              .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides()));
    }
    tensors = ordinary;
  }

  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace lockstep::comm
