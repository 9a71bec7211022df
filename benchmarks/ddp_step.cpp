// SPDX-License-Identifier: BSD-3-Clause
// Training steps of several nets, bare and with DistributedDataParallel, interleaved within one process, to
// measure the overhead; with --mode only one of the two, to measure its memory. With --mode verify: steps that a
// StepVerifier verifies and others, in turn. The Python counterpart is pytorch/ddp_step.py.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "training_step.h"

namespace lockstep::bench::ddp_step {
namespace {

struct Flags {
  std::string net = "resnet18";
  std::string mode = "both";
  std::string backend = "auto";
  std::string between_hosts = "none";
  int steps = 20;
  bool optimizer_in_backward = false;
  bool verify_all_ranks = false;
};

const std::map<std::string, lockstep::CommHook>& hooks() {
  static const std::map<std::string, lockstep::CommHook> named{
      {"none", {}},
      {"bf16", lockstep::bf16_compress_hook},
      {"one-bit", lockstep::OneBit()},
      {"powersgd", lockstep::PowerSGD({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2})}};
  return named;
}

// Records the peak memory when gradients are computed.
void watch_gradient(const at::Tensor& tensor, const std::shared_ptr<double>& peak) {
  tensor.register_hook([peak](const at::Tensor&) { *peak = std::max(*peak, megabytes_now()); });
}

template <typename MakeNet>
nlohmann::json measure(const Flags& flags, const MakeNet& make_net, const at::Tensor& input) {
  const auto context = lockstep::init({.backend = flags.backend});
  Step bare;
  Step wrapped;
  std::shared_ptr<torch::nn::Module> watched;
  const auto peak = std::make_shared<double>(0);
  std::function<lockstep::DdpStats()> stats = [] { return lockstep::DdpStats{}; };
  if (flags.mode != "ddp") {
    torch::manual_seed(0);
    const auto net = make_net();
    watched = net.ptr();
    bare = make_step(net, input, false);
  }
  if (flags.mode != "bare") {
    torch::manual_seed(0);
    lockstep::DistributedDataParallelOptions options;
    if (flags.optimizer_in_backward) {
      options.optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(kRate));
      };
    }
    const auto net = make_net();
    watched = net.ptr();
    lockstep::DistributedDataParallel ddp(net, options);
    if (const auto& hook = hooks().at(flags.between_hosts))
      ddp->register_comm_hook(lockstep::between_hosts(hook));
    stats = [ddp] { return ddp->stats(); };
    wrapped = make_step(ddp, input, flags.optimizer_in_backward);
  }
  std::vector<double> bare_times;
  std::vector<double> wrapped_times;
  double loss = 0;
  for (int i = -3; i < flags.steps; ++i) {
    context.barrier();
    const double of_bare = bare ? seconds_of(bare, loss) : 0;
    context.barrier();
    const double of_wrapped = wrapped ? seconds_of(wrapped, loss) : 0;
    if (i < 0) continue;
    bare_times.push_back(of_bare);
    wrapped_times.push_back(of_wrapped);
  }
  if (watched) {  // apart from the timed steps
    for (const auto& parameter : watched->parameters()) watch_gradient(parameter, peak);
    (wrapped ? wrapped : bare)();
    *peak = std::max(*peak, megabytes_now());
  }
  const auto seen = stats();
  return {{"rank", context.rank()},
          {"bare_seconds", median(bare_times)},
          {"ddp_seconds", median(wrapped_times)},
          {"exposed_ms", seen.mean.communication_exposed},
          {"hidden_ms", seen.mean.communication_hidden},
          {"arrived_last", seen.arrived_last},
          {"peak_megabytes", *peak},
          {"loss", loss}};
}

template <typename MakeNet>
nlohmann::json measure_verified(const Flags& flags, const MakeNet& make_net, const at::Tensor& input) {
  const auto context = lockstep::init({.backend = flags.backend});
  torch::manual_seed(0);
  lockstep::DistributedDataParallel ddp(make_net());
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(kRate));
  lockstep::StepVerifier verifier(
      ddp, {.interval = 2, .all_ranks = flags.verify_all_ranks, .optimizer = &optimizer});
  const Step step = [&] {
    optimizer.zero_grad();
    double loss = 0;
    verifier.run(input, [&](const at::Tensor& batch) {
      const auto error = ddp->forward(batch).pow(2).mean();
      error.backward();
      loss = error.template item<double>();
    });
    optimizer.step();
    return loss;
  };
  std::vector<double> times;
  std::vector<double> verified_times;
  double loss = 0;
  for (int i = -3; i < flags.steps; ++i) {
    for (auto* const all : {&times, &verified_times}) {
      context.barrier();
      const double seconds = seconds_of(step, loss);
      if (i >= 0) all->push_back(seconds);
    }
  }
  const double of_step = median(times);
  const double of_verified = median(verified_times);
  return {{"rank", context.rank()},
          {"ddp_seconds", of_step},
          {"verified_seconds", of_verified},
          {"share_with_every_50th", (of_verified - of_step) / of_step / 50}};
}

nlohmann::json measure(const Flags& flags) {
  return with_net(flags.net, 1, [&](const auto& make_net, const at::Tensor& input) {
    if (flags.mode == "verify") return measure_verified(flags, make_net, input);
    return measure(flags, make_net, input);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps with and without DistributedDataParallel; prints JSON");
  Flags flags;
  app.add_option("--net", flags.net)->check(CLI::IsMember(net_names()))->capture_default_str();
  app.add_option("--mode", flags.mode)
      ->check(CLI::IsMember({"both", "bare", "ddp", "verify"}))
      ->capture_default_str();
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--between-hosts", flags.between_hosts, "the communication hook of what crosses hosts")
      ->check(CLI::IsMember(hooks()))
      ->capture_default_str();
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--optimizer-in-backward", flags.optimizer_in_backward);
  app.add_flag("--verify-all-ranks", flags.verify_all_ranks,
               "with --mode verify: each verified step verifies all ranks");
  CLI11_PARSE(app, argc, argv);
  const auto result = measure(flags);
  if (result["rank"] == 0) std::cout << result << std::endl;
  return 0;
}

}  // namespace lockstep::bench::ddp_step
