// SPDX-License-Identifier: BSD-3-Clause
// Times the steps of optimizers alone, with constant gradients: LibTorch's own and the fused ones,
// interleaved. Prints JSON. The Python counterpart is pytorch/optim_step.py.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::bench::optim_step {
namespace {

using Clock = std::chrono::steady_clock;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

struct Flags {
  std::string net = "gpt";
  int rounds = 15;
  int steps = 10;  // a round
};

// Those of a GPT with eight layers of 256, of an MLP with four large layers, and many small ones.
std::vector<at::Tensor> make_parameters(const std::string& net) {
  std::vector<std::vector<std::int64_t>> shapes;
  if (net == "gpt") {
    shapes = {{8192, 256}, {256, 256}, {256}, {256}};
    for (int layer = 0; layer < 8; ++layer) {
      shapes.insert(shapes.end(), {{256}, {256}, {768, 256}, {768}, {256, 256}, {256}});
      shapes.insert(shapes.end(), {{256}, {256}, {1024, 256}, {1024}, {256, 1024}, {256}});
    }
  } else if (net == "mlp") {
    for (int layer = 0; layer < 4; ++layer) shapes.insert(shapes.end(), {{1024, 1024}, {1024}});
  } else {
    shapes.assign(400, {64});
  }
  torch::manual_seed(0);
  std::vector<at::Tensor> parameters;
  for (const auto& shape : shapes) {
    parameters.push_back(torch::randn(shape).requires_grad_());
    parameters.back().mutable_grad() = torch::randn(shape);
  }
  return parameters;
}

std::map<std::string, Optimizer> make_optimizers(const std::string& net) {
  namespace optim = lockstep::optim;
  const auto sgd = torch::optim::SGDOptions(1e-3).momentum(0.9);
  std::map<std::string, Optimizer> made;
  made["adamw"] = std::make_unique<torch::optim::AdamW>(make_parameters(net));
  made["adamw fused"] = std::make_unique<optim::FusedAdamW>(make_parameters(net));
  made["adam"] = std::make_unique<torch::optim::Adam>(make_parameters(net));
  made["adam fused"] = std::make_unique<optim::FusedAdam>(make_parameters(net));
  made["sgd"] = std::make_unique<torch::optim::SGD>(make_parameters(net), sgd);
  made["sgd fused"] = std::make_unique<optim::FusedSGD>(make_parameters(net), sgd);
  return made;
}

double seconds_a_step(torch::optim::Optimizer& optimizer, int steps) {
  const auto begin = Clock::now();
  for (int step = 0; step < steps; ++step) optimizer.step();
  return std::chrono::duration<double>(Clock::now() - begin).count() / steps;
}

nlohmann::json measure(const Flags& flags) {
  torch::set_num_threads(1);
  auto optimizers = make_optimizers(flags.net);
  std::map<std::string, std::vector<double>> seconds;
  for (int round = -1; round < flags.rounds; ++round) {
    for (auto& [name, optimizer] : optimizers) {
      const double took = seconds_a_step(*optimizer, flags.steps);
      if (round >= 0) seconds[name].push_back(took);
    }
  }
  nlohmann::json medians;
  for (auto& [name, all] : seconds) {
    std::ranges::sort(all);
    medians[name] = all[all.size() / 2];
  }
  return medians;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times steps of optimizers; prints JSON");
  Flags flags;
  app.add_option("--net", flags.net, "whose parameters")->check(CLI::IsMember({"gpt", "mlp", "small"}));
  app.add_option("--rounds", flags.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", flags.steps, "steps of a round")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  std::cout << measure(flags).dump() << '\n';
  return 0;
}

}  // namespace lockstep::bench::optim_step
