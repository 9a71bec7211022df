// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/nn/module.h>

namespace lockstep::graphs {

// The memory and layout of a tensor at the capture, which the graph reads and writes. Keeps the memory alive.
class TensorLocation {
 public:
  explicit TensorLocation(const at::Tensor& tensor);
  // Whether `now` has the same memory, layout and dtype, or both are undefined.
  bool matches(const at::Tensor& now) const;
  bool is_defined() const { return storage_.has_value(); }

 private:
  std::optional<c10::Storage> storage_;
  const void* data_ = nullptr;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  at::ScalarType dtype_ = at::kFloat;
  bool requires_grad_ = false;
};

std::vector<TensorLocation> locations_of(const std::vector<at::Tensor>& tensors);
bool all_match(const std::vector<TensorLocation>& places, const std::vector<at::Tensor>& tensors);

// The submodules, parameters and buffers of some modules, each once.
struct ModuleParts {
  explicit ModuleParts(const std::vector<std::shared_ptr<torch::nn::Module>>& roots);
  std::vector<bool> modes() const;  // training or evaluation, per module

  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

std::vector<at::Tensor> without_duplicates(const std::vector<at::Tensor>& tensors);

// The gradients of some parameters before and after a capture.
class CapturedGradients {
 public:
  explicit CapturedGradients(std::vector<at::Tensor> parameters);
  // Called after the capture: records the gradients that the step produced.
  void record_results();
  // Whether a replay with the current gradients is equivalent to the step. Gradients that the step replaces
  // do not matter.
  bool still_match() const;
  // Sets the parameters' gradients to those that the graph writes.
  void assign_results() const;
  // Restores the gradients before the capture.
  void restore() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> before_;
  std::vector<TensorLocation> before_locations_;
  std::vector<bool> is_input_;
  std::vector<at::Tensor> after_;
};

}  // namespace lockstep::graphs
