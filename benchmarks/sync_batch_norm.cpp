// SPDX-License-Identifier: BSD-3-Clause
// Steps of a ResNet-18 with DistributedDataParallel: with BatchNorm and with SyncBatchNorm, interleaved
// within one process.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <lockstep/lockstep.h>

#include "training_step.h"

namespace lockstep::bench::sync_batch_norm {
namespace {

struct Flags {
  std::string backend = "auto";
  int steps = 20;
  int batch = 4;
  int size = 32;
  bool channels_last = false;
};

nlohmann::json measure(const Flags& flags) {
  const auto context = lockstep::init({.backend = flags.backend});
  torch::manual_seed(1);
  auto input = torch::randn({flags.batch, 3, flags.size, flags.size});
  if (flags.channels_last) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  const auto make = [&](bool synced) {
    torch::manual_seed(0);
    lockstep::testing::ResNet18 net(64, 3, 10);
    if (synced) lockstep::convert_sync_batchnorm(net);
    return make_step(lockstep::DistributedDataParallel(net), input);
  };
  const Step plain = make(false);
  const Step synced = make(true);
  std::vector<double> plain_times;
  std::vector<double> synced_times;
  double loss = 0;
  for (int i = -3; i < flags.steps; ++i) {
    context.barrier();
    const double of_plain = seconds_of(plain, loss);
    context.barrier();
    const double of_synced = seconds_of(synced, loss);
    if (i < 0) continue;
    plain_times.push_back(of_plain);
    synced_times.push_back(of_synced);
  }
  return {{"rank", context.rank()},
          {"plain_seconds", median(plain_times)},
          {"synced_seconds", median(synced_times)}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps with BatchNorm and SyncBatchNorm; prints JSON");
  Flags flags;
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", flags.batch, "images a rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--size", flags.size, "height and width")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--channels-last", flags.channels_last);
  CLI11_PARSE(app, argc, argv);
  const auto result = measure(flags);
  if (result["rank"] == 0) std::cout << result << std::endl;
  return 0;
}

}  // namespace lockstep::bench::sync_batch_norm
