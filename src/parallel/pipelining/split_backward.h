// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace lockstep::pipelining {

// A backward in two parts: first the gradients of the inputs, later those of the parameters. Together they
// compute what one backward computes, each matrix product once.
class SplitBackward {
 public:
  // The gradients of `inputs`: leaves, each with an undefined gradient where it needs none or no output
  // depends on it. Keeps the gradients at the nodes of which parameters hang. An undefined `gradients[i]`
  // leaves out outputs[i].
  std::vector<at::Tensor> input_part(const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& gradients,
                                     const std::vector<at::Tensor>& inputs);
  // Adds to the gradients of the parameters, once.
  void weight_part();

 private:
  void keep(const torch::autograd::Edge& edge, const at::Tensor& gradient);

  // Where the weight part begins.
  std::vector<torch::autograd::Edge> edges_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace lockstep::pipelining
