// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include <torch/torch.h>

#include <lockstep/models/vision.h>

namespace lockstep::testing {

// A network under test, whatever its type.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<std::vector<at::Tensor>(const at::Tensor&)> forward;
};

inline std::vector<at::Tensor> outputs_of(at::Tensor output) { return {std::move(output)}; }
// PointNet's.
inline std::vector<at::Tensor> outputs_of(const std::tuple<at::Tensor, at::Tensor>& outputs) {
  const auto& [logits, transform] = outputs;
  if (!transform.defined()) return {logits};
  return {logits, transform, models::feature_transform_regularizer(transform)};
}

template <typename Net>
Subject subject_of(Net net) {
  return {net.ptr(), [net](const at::Tensor& input) mutable { return outputs_of(net->forward(input)); }};
}

struct ModelCase {
  std::string name;
  std::function<Subject()> make;
  // The largest difference of a number, relative to the largest number of its tensor; 0: to the bit.
  double tolerance = 0;
};

// Writes <folder>/<name>.cpp.pt for each case, and runs the script with the folder and the names.
void exchange_with_python(const std::string& script, const std::string& folder,
                          const std::vector<ModelCase>& cases, const std::vector<std::string>& others = {});

// That names, starting weights, outputs, gradients and buffers are Python's, and that clone() copies all.
void expect_pythons(const ModelCase& test_case, const std::string& folder);

}  // namespace lockstep::testing
