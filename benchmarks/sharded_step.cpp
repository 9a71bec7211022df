// SPDX-License-Identifier: BSD-3-Clause
// Training steps with AdamW under DistributedDataParallel, ZeroRedundancyOptimizer and fully_shard(): time of
// a step, and memory of all ranks. Mode "trap": what it costs that operators find their parameters. The
// Python counterpart is pytorch/sharded_step.py.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "training_step.h"

namespace lockstep::bench::sharded_step {
namespace {

struct Flags {
  std::string net = "mlp";
  std::string mode = "shared";
  std::string backend = "auto";
  int steps = 10;
};

double megabytes_of_all_ranks(const lockstep::Context& context) {
  context.barrier();
  const auto sum = torch::full({1}, megabytes_now(), at::kDouble);
  context.group().all_reduce(sum);
  return sum.item<double>();
}

// Each layer of a list is a group, and what is left is another.
lockstep::FSDPModule shard(torch::nn::Module& net, const lockstep::FullyShardOptions& options) {
  for (const auto& child : net.children()) {
    for (const auto& layer : child->children()) {
      if (!layer->parameters().empty()) lockstep::fully_shard(layer, options);
    }
  }
  return lockstep::fully_shard(net, options);
}

double operator_microseconds(const at::Tensor& parameter) {
  constexpr int kCalls = 20'000;
  const torch::NoGradGuard no_grad;
  double sum = 0;
  const Step calls = [&] {
    for (int i = 0; i < kCalls; ++i) (void)parameter.add(1);
    return 0;
  };
  return seconds_of(calls, sum) / kCalls * 1e6;
}

// What an operator on a parameter of fully_shard() takes longer than on another one.
double trap_microseconds() {
  torch::nn::Linear plain(1, 1), sharded(1, 1);
  lockstep::fully_shard(sharded);
  std::vector<double> differences;
  for (int i = 0; i < 9; ++i) {
    const auto without = operator_microseconds(plain->weight);
    differences.push_back(operator_microseconds(sharded->weight) - without);
  }
  return median(differences);
}

// The time of `run` after fully_shard(), which has no communication on one rank, beside that before.
template <class Net, class Run>
double trap_ratio(const Net& plain, const Net& sharded, int rounds, const Run& run) {
  std::vector<double> ratios;
  double sum = 0;
  const auto seconds = [&](const Net& net) { return seconds_of([&] { return run(Net(net)); }, sum); };
  for (int i = 0; i < 3 + rounds; ++i) {
    const bool first = i % 2 == 0;
    const auto one = seconds(first ? plain : sharded);
    const auto other = seconds(first ? sharded : plain);
    if (i >= 3) ratios.push_back(first ? other / one : one / other);
  }
  return median(ratios);
}

template <class Model, class Optimizer>
Step step_of(Model model, std::shared_ptr<Optimizer> optimizer, const at::Tensor& input) {
  return [=]() mutable {
    optimizer->zero_grad();
    const auto loss = model->forward(input).pow(2).mean();
    loss.backward();
    optimizer->step();
    return loss.template item<double>();
  };
}

template <class Net>
Step make_step(const Flags& flags, Net net, const at::Tensor& input) {
  using lockstep::optim::FusedAdamW, lockstep::optim::FusedAdamWOptions;
  const FusedAdamWOptions options(kRate);
  if (flags.mode == "plain")
    return step_of(net, std::make_shared<FusedAdamW>(net->parameters(), options), input);
  if (flags.mode == "ddp") {
    const lockstep::DistributedDataParallel ddp(net);
    return step_of(ddp, std::make_shared<FusedAdamW>(net->parameters(), options), input);
  }
  if (flags.mode.starts_with("zero1")) {
    const lockstep::DistributedDataParallel ddp(net);
    const auto zero =
        std::make_shared<lockstep::ZeroRedundancyOptimizer<FusedAdamW>>(net->parameters(), options);
    if (flags.mode == "zero1-shared") zero->share_parameters();
    return step_of(ddp, zero, input);
  }
  const auto sharded = shard(*net, {.share_memory = flags.mode == "shared"});
  return step_of(net, std::make_shared<FusedAdamW>(sharded.parameters(), options), input);
}

nlohmann::json measure(const Flags& flags) {
  return with_net(flags.net, 1, [&](const auto& make_net, const at::Tensor& input) -> nlohmann::json {
    const auto context = lockstep::init({.backend = flags.backend});
    (void)torch::mm(torch::ones({64, 64}), torch::ones({64, 64}));
    const auto base = megabytes_of_all_ranks(context);
    torch::manual_seed(0);
    const auto net = make_net();
    std::int64_t parameters = 0;
    for (const auto& parameter : net->parameters()) parameters += parameter.numel();
    const auto step = make_step(flags, net, input);
    std::vector<double> times;
    double loss = 0;
    for (int i = -3; i < flags.steps; ++i) {
      context.barrier();
      const auto seconds = seconds_of(step, loss);
      if (i >= 0) times.push_back(seconds);
    }
    const auto with_cache = megabytes_of_all_ranks(context) - base;
    lockstep::empty_cpu_cache();
    const auto megabytes = megabytes_of_all_ranks(context) - base;
    return {{"rank", context.rank()},
            {"parameters", parameters},
            {"seconds", median(times)},
            {"megabytes", megabytes},
            {"bytes_per_parameter", megabytes * 1024 * 1024 / static_cast<double>(parameters)},
            {"bytes_with_cache", with_cache * 1024 * 1024 / static_cast<double>(parameters)},
            {"loss", loss}};
  });
}

nlohmann::json measure_trap(const Flags& flags) {
  return with_net(flags.net, 1, [&](const auto& make_net, const at::Tensor& input) -> nlohmann::json {
    const auto context = lockstep::init({.backend = flags.backend});
    if (context.world_size() > 1) throw lockstep::ArgumentError("mode trap is for one rank");
    const auto plain = make_net();
    auto sharded = make_net();
    shard(*sharded, {}).set_requires_gradient_sync(false);  // without the copies of a reduction by one rank
    const auto forward = [&](auto net) {
      const torch::NoGradGuard no_grad;
      return net->forward(input).sum().template item<double>();
    };
    const auto step = [&](auto net) {
      net->zero_grad();
      const auto loss = net->forward(input).pow(2).mean();
      loss.backward();
      return loss.template item<double>();
    };
    return {{"rank", context.rank()},
            {"microseconds", trap_microseconds()},
            {"forward", trap_ratio(plain, sharded, flags.steps, forward) - 1},
            {"step", trap_ratio(plain, sharded, flags.steps, step) - 1}};
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps of sharded nets; prints JSON");
  Flags flags;
  app.add_option("--net", flags.net)->check(CLI::IsMember(net_names()))->capture_default_str();
  app.add_option("--mode", flags.mode)
      ->check(CLI::IsMember({"plain", "ddp", "zero1", "zero1-shared", "shared", "gathered", "trap"}))
      ->capture_default_str();
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = flags.mode == "trap" ? measure_trap(flags) : measure(flags);
  if (result["rank"] == 0) std::cout << result << std::endl;
  return 0;
}

}  // namespace lockstep::bench::sharded_step
