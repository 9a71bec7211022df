// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "parity/models/gpt.h"
#include "parity/models/resnet.h"

// Training steps that several benchmarks time.
namespace lockstep::bench {

constexpr double kRate = 1e-3;

struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    for (int i = 0; i < 200; ++i) layers->push_back(torch::nn::Linear(32, 32));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Chain);

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Linear(4096, 4096));
      layers->push_back(torch::nn::ReLU());
    }
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Mlp);

inline const std::vector<std::string>& net_names() {
  static const std::vector<std::string> names{"resnet18", "chain", "gpt", "gpt_large", "mlp"};
  return names;
}

// Calls `use(make_net, input)` for the net of that name; `ranks` times the batch of one rank.
template <typename Use>
auto with_net(const std::string& name, std::int64_t ranks, Use use) {
  using namespace lockstep::testing;
  torch::manual_seed(1);
  if (name == "resnet18") {
    return use([] { return ResNet18(64, 3, 10); }, torch::randn({4 * ranks, 3, 32, 32}));
  }
  if (name == "gpt" || name == "gpt_large") {
    GptOptions options{.vocabulary = 1024, .context = 64, .width = 256, .heads = 8, .layers = 4};
    if (name == "gpt_large") options.width = 512, options.layers = 12;
    return use([options] { return Gpt(options); }, torch::randint(1024, {2 * ranks, 64}, at::kLong));
  }
  if (name == "mlp") return use([] { return Mlp(); }, torch::randn({8 * ranks, 4096}));
  return use([] { return Chain(); }, torch::randn({8 * ranks, 32}));
}

// One step; returns the loss.
using Step = std::function<double()>;

template <typename Model>
Step make_step(Model model, const at::Tensor& input, bool steps_itself = false) {
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(kRate));
  return [model, optimizer, input, steps_itself]() mutable {
    if (!steps_itself) optimizer->zero_grad();
    const auto loss = model->forward(input).pow(2).mean();
    loss.backward();
    if (!steps_itself) optimizer->step();
    return loss.template item<double>();
  };
}

inline double seconds_of(const Step& step, double& loss) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  loss = step();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// PSS: memory that two processes share counts half for each.
inline double megabytes_now() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    double kibibytes = 0;
    file >> kibibytes;
    return kibibytes / 1024;
  }
  return 0;
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace lockstep::bench
