// SPDX-License-Identifier: BSD-3-Clause
// Training steps that communicate much and compute little: a wide net and a small batch. Steps with and
// without reduction take turns, so that what reduction adds to a step is seen. The Python twin is
// pytorch/mlp.py.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::bench::mlp {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string backend = "auto";
  std::int64_t width = 4096;
  int layers = 4;
  std::int64_t batch_size = 8;
  int steps = 12;
};

torch::nn::Sequential make_net(const Flags& flags) {
  torch::nn::Sequential net;
  for (int layer = 0; layer < flags.layers; ++layer) {
    net->push_back(torch::nn::Linear(flags.width, flags.width));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

nlohmann::json measure(const Flags& flags) {
  const auto context = lockstep::init({.backend = flags.backend});
  torch::manual_seed(0);
  lockstep::DistributedDataParallel ddp(make_net(flags));
  torch::optim::SGD optimizer(ddp->parameters(), 1e-2);
  torch::manual_seed(1 + context.rank());
  const auto input = torch::randn({flags.batch_size, flags.width});
  double loss_value = 0;
  const auto step = [&] {
    optimizer.zero_grad();
    const auto loss = ddp->forward(input).pow(2).mean();
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  };
  std::vector<double> reduced;
  std::vector<double> alone;
  for (int i = -3; i < 2 * flags.steps; ++i) {
    const bool reduces = i < 0 || i % 2 == 0;
    context.barrier();
    const auto begin = Clock::now();
    {
      std::optional<lockstep::NoSync> quiet;
      if (!reduces) quiet.emplace(ddp->no_sync());
      step();
    }
    context.barrier();  // a step lasts until the slowest rank is through
    if (i >= 0)
      (reduces ? reduced : alone).push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return {{"rank", context.rank()},
          {"backend", context.group().backend_name()},
          {"step_seconds", median(reduced)},
          {"step_seconds_without_reduction", median(alone)},
          {"loss", loss_value}};
}

int main(int argc, char** argv) {
  CLI::App app("Times training steps of a wide net with a small batch; prints JSON");
  Flags flags;
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--width", flags.width)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--layers", flags.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch-size", flags.batch_size)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", flags.steps, "Timed steps, with reduction and without")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = measure(flags);
  if (result["rank"] == 0) std::cout << result << std::endl;
  return 0;
}

}  // namespace lockstep::bench::mlp
