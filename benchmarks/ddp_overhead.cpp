// SPDX-License-Identifier: BSD-3-Clause
// The overhead of DistributedDataParallel on one rank: trains the MNIST net bare and wrapped, alternating
// every few steps within one process, because two processes differ by more than the overhead. With --watch:
// the time that a forward takes to see that a module of 200 parameters has not changed.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "modules/module_watch.h"
#include "parity/models/mnist_nets.h"

namespace lockstep::bench::ddp_overhead {

using Clock = std::chrono::steady_clock;

struct Flags {
  int rounds = 60;
  int steps = 5;
  std::int64_t batch_size = 128;
  bool watch = false;
};

struct Data {
  torch::Tensor images;
  torch::Tensor labels;
};

template <typename Model>
double seconds_per_step(Model& model, torch::optim::Optimizer& optimizer, const Data& data, int steps) {
  const auto start = Clock::now();
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(data.images), data.labels).backward();
    optimizer.step();
  }
  return std::chrono::duration<double>(Clock::now() - start).count() / steps;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

nlohmann::json measure(const Flags& flags) {
  const auto context = lockstep::init({.backend = "gloo"});
  torch::manual_seed(0);
  lockstep::testing::MnistNet bare;
  lockstep::testing::MnistNet wrapped;
  lockstep::DistributedDataParallel ddp(wrapped);
  torch::optim::SGD bare_optimizer(bare->parameters(), 1e-2);
  torch::optim::SGD ddp_optimizer(ddp->parameters(), 1e-2);
  const Data data{.images = torch::randn({flags.batch_size, 1, 28, 28}),
                  .labels = torch::randint(10, {flags.batch_size}, torch::kLong)};

  std::vector<double> bare_seconds;
  std::vector<double> ddp_seconds;
  std::vector<double> ratios;
  for (int round = -2; round < flags.rounds; ++round) {
    // The first side alternates, so that caches and clock rates favour neither.
    double of_bare = 0;
    double of_ddp = 0;
    if (round % 2 == 0) of_bare = seconds_per_step(bare, bare_optimizer, data, flags.steps);
    of_ddp = seconds_per_step(ddp, ddp_optimizer, data, flags.steps);
    if (round % 2 != 0) of_bare = seconds_per_step(bare, bare_optimizer, data, flags.steps);
    if (round < 0) continue;  // warm-up
    bare_seconds.push_back(of_bare);
    ddp_seconds.push_back(of_ddp);
    ratios.push_back(of_ddp / of_bare);
  }
  return {{"bare_seconds_per_step", median(bare_seconds)},
          {"ddp_seconds_per_step", median(ddp_seconds)},
          {"ratio", median(ratios)}};
}

// Steps of a net whose parameters, gradients and activations do not fit into the caches.
nlohmann::json measure_watch(const Flags& flags) {
  constexpr int kLayers = 100;
  constexpr std::int64_t kWidth = 384;
  torch::nn::Sequential net;
  for (int layer = 0; layer < kLayers; ++layer) net->push_back(torch::nn::Linear(kWidth, kWidth));
  torch::optim::SGD optimizer(net->parameters(), 1e-3);
  const auto parameters = net->parameters();
  // As the hooks of the reducer hold them.
  std::vector<decltype(torch::autograd::impl::grad_accumulator(parameters[0]))> held;
  lockstep::modules::ModuleWatch::Accumulators accumulators;
  for (const auto& each : parameters) {
    held.push_back(torch::autograd::impl::grad_accumulator(each));
    accumulators.emplace(each.unsafeGetTensorImpl(), held.back().get());
  }
  const lockstep::modules::ModuleWatch watch(*net, accumulators);
  const auto batch = torch::randn({flags.batch_size, kWidth});
  const auto watched = [&watch] {
    const auto start = Clock::now();
    const bool same = watch.is_unchanged(true);
    const auto end = Clock::now();
    if (!same) throw std::runtime_error("the module has changed");
    return std::chrono::duration<double, std::micro>(end - start).count();
  };
  std::vector<double> after_zero_grad;
  std::vector<double> after_step;
  for (int step = 0; step < 2 * flags.rounds; ++step) {
    if (step % 2 == 0) after_step.push_back(watched());
    optimizer.zero_grad();
    if (step % 2 != 0) after_zero_grad.push_back(watched());
    net->forward(batch).pow(2).mean().backward();
    optimizer.step();
  }
  return {{"parameters", parameters.size()},
          {"microseconds_after_zero_grad", median(after_zero_grad)},
          {"microseconds_after_step", median(after_step)}};
}

nlohmann::json run(const Flags& flags) { return flags.watch ? measure_watch(flags) : measure(flags); }

int main(int argc, char** argv) {
  CLI::App app("Compares training steps with and without DistributedDataParallel on one rank; prints JSON");
  Flags flags;
  app.add_option("--rounds", flags.rounds, "Slices of each side")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "Steps per slice")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size", flags.batch_size, "Images per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--watch", flags.watch, "Measures the comparison of the module instead");
  CLI11_PARSE(app, argc, argv);
  std::cout << run(flags) << std::endl;
  return 0;
}

}  // namespace lockstep::bench::ddp_overhead
