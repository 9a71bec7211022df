// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::amp {

// The gradients of an optimizer's parameters, those of one device and one type together: as one operator
// takes them.
class GradientLists {
 public:
  void add(const at::Tensor& gradient);

  // Multiplies each in place. [i] of the result, one a device: `found_inf` or, where something is not finite,
  // 1. Both arguments are of one element; they are copied to the devices.
  std::vector<at::Tensor> unscale(const at::Tensor& inverse_scale, const at::Tensor& found_inf);

 private:
  using Lists = std::map<at::ScalarType, std::vector<at::Tensor>>;
  std::vector<std::pair<c10::Device, Lists>> devices_;
};

// Of sparse gradients the values. Throws ArgumentError for gradients in float16 unless they are allowed.
GradientLists gradient_lists(const torch::optim::Optimizer& optimizer, bool allow_half);

// `tensor` on that device. Waits only for copies to the CPU, which would be read before they have come.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device);

}  // namespace lockstep::amp
