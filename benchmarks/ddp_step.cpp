// SPDX-License-Identifier: BSD-3-Clause
// Training steps of several nets, bare and with DistributedDataParallel, in turns within one process, so that
// what wrapping adds is seen; with --mode one of the two alone, for its memory. The Python twin is
// pytorch/ddp_step.py.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/models/gpt.h"
#include "parity/models/resnet.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string net = "resnet18";
  std::string mode = "both";
  std::string backend = "auto";
  int steps = 20;
  bool optimizer_in_backward = false;
};

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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Memory that two processes share counts half for each.
double megabytes_now() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    double kibibytes = 0;
    file >> kibibytes;
    return kibibytes / 1024;
  }
  return 0;
}

// Looks how much memory is in use when a gradient comes by.
void watch_gradient(const at::Tensor& tensor, const std::shared_ptr<double>& peak) {
  tensor.register_hook([peak](const at::Tensor&) { *peak = std::max(*peak, megabytes_now()); });
}

// One step; returns the loss.
using Step = std::function<double()>;

template <typename Model>
Step make_step(Model model, const at::Tensor& input, bool steps_itself) {
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(kRate));
  return [model, optimizer, input, steps_itself]() mutable {
    if (!steps_itself) optimizer->zero_grad();
    const auto loss = model->forward(input).pow(2).mean();
    loss.backward();
    if (!steps_itself) optimizer->step();
    return loss.template item<double>();
  };
}

double seconds_of(const Step& step, double& loss) {
  const auto begin = Clock::now();
  loss = step();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

template <typename Net, typename... Arguments>
nlohmann::json measure(const Flags& flags, const at::Tensor& input, Arguments... arguments) {
  const auto context = lockstep::init({.backend = flags.backend});
  Step bare;
  Step wrapped;
  std::shared_ptr<torch::nn::Module> watched;
  const auto peak = std::make_shared<double>(0);
  std::function<lockstep::DdpStats()> stats = [] { return lockstep::DdpStats{}; };
  if (flags.mode != "ddp") {
    torch::manual_seed(0);
    const Net net(arguments...);
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
    const Net net(arguments...);
    watched = net.ptr();
    lockstep::DistributedDataParallel<Net> ddp(net, options);
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

nlohmann::json measure(const Flags& flags) {
  using namespace lockstep::testing;
  const auto drawn = [](auto draw) {
    torch::manual_seed(1);
    return draw();
  };
  if (flags.net == "resnet18") {
    return measure<ResNet18>(flags, drawn([] { return torch::randn({4, 3, 32, 32}); }), 64, 3, 10);
  }
  if (flags.net == "gpt") {
    const GptOptions options{.vocabulary = 1024, .context = 64, .width = 256, .heads = 8, .layers = 4};
    return measure<Gpt>(flags, drawn([] { return torch::randint(1024, {2, 64}, at::kLong); }), options);
  }
  if (flags.net == "mlp") return measure<Mlp>(flags, drawn([] { return torch::randn({8, 4096}); }));
  return measure<Chain>(flags, drawn([] { return torch::randn({8, 32}); }));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps with and without DistributedDataParallel; prints JSON");
  Flags flags;
  app.add_option("--net", flags.net)
      ->check(CLI::IsMember({"resnet18", "chain", "gpt", "mlp"}))
      ->capture_default_str();
  app.add_option("--mode", flags.mode)->check(CLI::IsMember({"both", "bare", "ddp"}))->capture_default_str();
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--optimizer-in-backward", flags.optimizer_in_backward);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto result = measure(flags);
    if (result["rank"] == 0) std::cout << result << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "ddp_step: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
