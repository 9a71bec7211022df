// SPDX-License-Identifier: BSD-3-Clause
// Trains the net of examples/02_mnist on MNIST and prints JSON. The Python counterpart is pytorch/mnist.py.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "parity/models/mnist_nets.h"

namespace lockstep::bench::mnist {

namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;
using lockstep::testing::MnistNet;

struct Flags {
  int epochs = 5;
  std::int64_t batch_size = 128;
  double lr = 1e-2;
  std::int64_t seed = 0;
  std::string backend = "auto";
  int threads = 0;
  std::string data_dir = ".data/mnist";
  std::int64_t max_steps = 0;
  std::int64_t log_interval = 0;
  bool no_ddp = false;
  std::string amp = "none";
  bool channels_last = false;
};

void add_flags(CLI::App& app, Flags& flags) {
  app.add_option("--epochs", flags.epochs, "Passes over the training images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size", flags.batch_size, "Images per step and rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", flags.lr, "Learning rate of SGD")->capture_default_str();
  app.add_option("--seed", flags.seed, "Seed of weights, order and dropout")->capture_default_str();
  app.add_option("--backend", flags.backend, "auto, gloo, ...")->capture_default_str();
  app.add_option("--threads", flags.threads, "Intra-op threads per rank; 0: the default")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--data-dir", flags.data_dir, "Folder of the MNIST files; missing files are downloaded")
      ->capture_default_str();
  app.add_option("--max-steps", flags.max_steps, "Stop each epoch after N steps; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--log-interval", flags.log_interval, "Print a line on stderr every N steps; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--no-ddp", flags.no_ddp, "Train the bare module; one process only");
  app.add_option("--amp", flags.amp, "Mixed precision: none, bf16 or fp16")
      ->check(CLI::IsMember({"none", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_flag("--channels-last", flags.channels_last, "Use the channels-last memory format");
}

struct EpochResult {
  double loss = 0;  // mean over all samples of all ranks
  std::int64_t samples = 0;
  double seconds = 0;
};

template <typename Model>
torch::Tensor loss_of(Model& model, torch::Tensor images, const torch::Tensor& labels,
                      const lockstep::Context& context, const Flags& flags) {
  const lockstep::amp::Autocast autocast(
      context.device(),
      {.dtype = flags.amp == "fp16" ? torch::kHalf : torch::kBFloat16, .enabled = flags.amp != "none"});
  const auto layout = flags.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  images = images.to(context.device()).contiguous(layout);
  return F::cross_entropy(model->forward(images), labels.to(context.device()));
}

template <typename Model, typename Loader>
EpochResult train_epoch(Model& model, MnistNet net, Loader& loader, torch::optim::Optimizer& optimizer,
                        lockstep::amp::GradScaler& scaler, const lockstep::Context& context,
                        const Flags& flags, int epoch) {
  net->train();
  loader.set_epoch(epoch);
  const auto steps = flags.max_steps > 0 ? std::min(flags.max_steps, loader.size()) : loader.size();
  const auto start = Clock::now();
  auto totals = torch::zeros({2}, torch::kDouble);  // loss times samples, samples
  std::int64_t step = 0;
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    auto loss = loss_of(model, images, labels, context, flags);
    scaler.scale(loss).backward();  // gradients are averaged while this runs
    const double value = loss.template item<double>();
    ++step;
    scaler.step(optimizer);
    scaler.update();
    totals[0] += value * static_cast<double>(labels.size(0));
    totals[1] += labels.size(0);
    if (flags.log_interval > 0 && step % flags.log_interval == 0 && context.is_main_process()) {
      std::cerr << fmt::format("epoch {}: step {}/{}, loss {:.4f}", epoch, step, steps, value) << std::endl;
    }
    if (step == steps) break;
  }
  context.group().all_reduce(totals);
  return {.loss = (totals[0] / totals[1]).item<double>(),
          .samples = totals[1].item<std::int64_t>(),
          .seconds = std::chrono::duration<double>(Clock::now() - start).count()};
}

// Every test image is counted on exactly one rank.
double accuracy(MnistNet net, const lockstep::data::MNIST& dataset, const lockstep::Context& context) {
  const torch::NoGradGuard no_grad;
  net->eval();
  lockstep::data::DataLoader loader(
      dataset, {.batch_size = 500,
                .sampler = std::make_shared<lockstep::data::DistributedEvalSampler>(dataset.size())});
  auto counts = torch::zeros({2}, torch::kLong);  // right, all
  for (auto& [images, labels] : loader) {
    const auto guesses = net->forward(images.to(context.device())).argmax(1).cpu();
    counts[0] += guesses.eq(labels).sum();
    counts[1] += labels.size(0);
  }
  context.group().all_reduce(counts);
  return counts[0].item<double>() / counts[1].item<double>();
}

template <typename Model>
void train(Model& model, MnistNet net, const lockstep::Context& context, const Flags& flags) {
  using lockstep::data::MNIST;
  const lockstep::transforms::Normalize normalize({0.5}, {0.5});
  const MNIST train_set(flags.data_dir, {.train = true, .download = true, .normalize = normalize});
  const MNIST test_set(flags.data_dir, {.train = false, .download = true, .normalize = normalize});
  lockstep::data::DataLoader loader(train_set,
                                    {.batch_size = flags.batch_size, .shuffle = true, .seed = flags.seed});
  torch::optim::SGD optimizer(model->parameters(), flags.lr);
  lockstep::amp::GradScaler scaler(context.device(), {.enabled = flags.amp == "fp16"});
  for (int epoch = 1; epoch <= flags.epochs; ++epoch) {
    const auto result = train_epoch(model, net, loader, optimizer, scaler, context, flags, epoch);
    const auto correct = accuracy(net, test_set, context);
    if (!context.is_main_process()) continue;
    std::cout << nlohmann::json{{"epoch", epoch},
                                {"loss", result.loss},
                                {"accuracy", correct},
                                {"seconds", result.seconds},
                                {"samples_per_second", static_cast<double>(result.samples) / result.seconds},
                                {"world_size", context.world_size()}}
              << std::endl;
  }
}

void run(const Flags& flags) {
  const auto context = lockstep::init({.backend = flags.backend});
  if (flags.threads > 0) torch::set_num_threads(flags.threads);
  torch::manual_seed(flags.seed);
  MnistNet net;
  if (flags.channels_last) lockstep::to_memory_format(net, at::MemoryFormat::ChannelsLast);
  if (flags.no_ddp) {
    if (context.world_size() > 1)
      throw std::runtime_error("--no-ddp is for one process; this is one of several");
    net->to(context.device());
    train(net, net, context, flags);
  } else {
    lockstep::DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
    train(ddp, net, context, flags);
  }
}

int main(int argc, char** argv) {
  CLI::App app("Trains MNIST and prints one JSON object per epoch");
  Flags flags;
  add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  run(flags);
  return 0;
}

}  // namespace lockstep::bench::mnist
