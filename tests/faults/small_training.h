// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

// What the ranks of elastic_rank.cpp and preempted_rank.cpp train.
namespace lockstep::testing {

class Numbers {
 public:
  std::size_t size() const { return 240; }
  data::Batch get_batch(const at::Tensor& indices) const {
    return {(indices.to(at::kFloat).unsqueeze(1) + torch::arange(16)).sin(), indices.remainder(4)};
  }
};

inline torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Linear(16, 64), BatchNorm1d(64), ReLU(), Dropout(0.3), Linear(64, 64), ReLU(),
                    Linear(64, 4));
}

inline std::string digest(const std::vector<at::Tensor>& tensors) {
  std::uint64_t hash = 1469598103934665603U;
  for (const auto& each : tensors) {
    const auto tensor = each.contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(tensor.data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  }
  return fmt::format("{:016x}", hash);
}

inline std::string digest(const torch::nn::Module& net) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : state_dict(net)) tensors.push_back(each.value.as_tensor());
  return digest(tensors);
}

// Rank 0 says that all ranks wait, which have committed their steps, and looks; the others learn of lost ranks meanwhile.
// `ends`: a call of all ranks that ends the wait, too.
inline void wait_for(
    const std::filesystem::path& file, const Context& context,
    const std::function<bool()>& ends = [] { return false; }) {
  context.group().barrier();
  if (context.is_main_process()) std::cout << "waits" << std::endl;
  const auto exists = torch::zeros({1});
  while (exists.item<float>() == 0 && !ends()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    exists.fill_(context.is_main_process() && std::filesystem::exists(file) ? 1 : 0);
    context.group().broadcast(exists, 0);
  }
}

}  // namespace lockstep::testing
