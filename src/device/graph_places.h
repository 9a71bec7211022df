// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/nn/module.h>

namespace lockstep::graphs {

// Where a tensor lay when a graph was captured, which reads and writes there. Keeps that memory.
class Place {
 public:
  explicit Place(const at::Tensor& tensor);
  // Whether `now` lies there, in the same layout and type, or both are undefined.
  bool holds(const at::Tensor& now) const;
  bool is_defined() const { return storage_.has_value(); }

 private:
  std::optional<c10::Storage> storage_;
  const void* data_ = nullptr;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  at::ScalarType dtype_ = at::kFloat;
  bool requires_grad_ = false;
};

std::vector<Place> places_of(const std::vector<at::Tensor>& tensors);
bool all_hold(const std::vector<Place>& places, const std::vector<at::Tensor>& tensors);

// What modules consist of, submodules included, each tensor once.
struct ModuleParts {
  explicit ModuleParts(const std::vector<std::shared_ptr<torch::nn::Module>>& roots);
  std::vector<bool> modes() const;  // training or not

  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

// `tensors` without those that come again.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors);

// The gradients of some parameters, before and after a step was captured.
class CapturedGradients {
 public:
  explicit CapturedGradients(std::vector<at::Tensor> parameters);
  // After the capture: which gradients the step left.
  void captured();
  // Whether the captured step, begun with the gradients there are now, would do what the step does. Where it
  // dropped the gradients that it found, those do not matter.
  bool fit() const;
  // Gives the parameters the gradients that the graph writes.
  void deliver() const;
  // Gives back those of before the capture.
  void restore() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> before_;
  std::vector<Place> needed_;
  std::vector<bool> matters_;
  std::vector<at::Tensor> after_;
};

}  // namespace lockstep::graphs
