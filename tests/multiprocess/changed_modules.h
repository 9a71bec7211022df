// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <torch/torch.h>

// What tests of modules share that change during training.
namespace lockstep::testing {

inline void set_trained(const torch::nn::Module& module, bool trained) {
  for (const auto& parameter : module.parameters()) parameter.set_requires_grad(trained);
}

inline at::Tensor leaf(at::IntArrayRef sizes) { return torch::full(sizes, 0.25).requires_grad_(); }

inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find("\nException raised"));
}

// When it is closed, a Gloo group waits for calls that another rank did not make, at most this long. So only
// one change of one rank is made over Gloo.
inline constexpr std::chrono::seconds kTimeout(8);

inline bool is_tried(std::string_view backend, std::string_view change, bool on_all) {
  return on_all || backend == "shm" || change.starts_with("freeze a layer");
}

}  // namespace lockstep::testing
