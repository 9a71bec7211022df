// SPDX-License-Identifier: BSD-3-Clause
// Trains a net on one GPU as one rank with DistributedDataParallel over nccl, and prints losses and times as
// JSON. The Python twin is gpu_training.py.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <vector>

#include <ATen/Context.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/master_weights.h"
#include "gpu/nets.h"

namespace {

namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;
using lockstep::gpu::Batch;
using Tensors = std::vector<at::Tensor>;

struct Flags {
  std::string net = "mnist";
  std::string mode = "eager";
  std::string precision = "fp32";
  std::string data = "resident";
  std::int64_t batch_size = 128;
  int warmup = 20;
  int chunks = 10;
  int steps = 10;  // a chunk
  bool deterministic = false;
  bool fast = false;
};

Flags parse(int argc, char** argv) {
  Flags flags;
  CLI::App app("Trains a net on one GPU");
  app.add_option("--net", flags.net)
      ->check(CLI::IsMember({"mnist", "resnet50", "gpt", "gpt125m", "gpt500m"}));
  app.add_option("--mode", flags.mode)->check(CLI::IsMember({"eager", "graph"}));
  app.add_option("--precision", flags.precision,
                 "bf16: autocast; bf16_weights: a net in bf16, whose optimizer works on copies in fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "bf16_weights"}));
  app.add_option("--data", flags.data,
                 "resident: one batch on the GPU; loader: MNIST-like images from the CPU")
      ->check(CLI::IsMember({"resident", "loader"}));
  app.add_option("--batch-size", flags.batch_size);
  app.add_option("--warmup", flags.warmup);
  app.add_option("--chunks", flags.chunks);
  app.add_option("--steps", flags.steps, "Steps between two looks at the clock");
  app.add_flag("--deterministic", flags.deterministic);
  app.add_flag("--fast", flags.fast, "channels_last, cuDNN searches for its fastest algorithms");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return flags;
}

void be_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicCuDNN(true);
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return F::cross_entropy(output.flatten(0, -2).to(at::kFloat), target.flatten());
}

struct Times {
  std::vector<double> steps;    // seconds a step, of each chunk
  std::vector<double> loading;  // the part of it in which the loop's thread takes a batch from the loader
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Times time_resident(const lockstep::Context& context, const Flags& flags, lockstep::GraphedStep& step,
                    const Batch& batch, Tensors& losses) {
  Times times;
  for (int i = 0; i < flags.warmup; ++i) losses.push_back(step({batch.input, batch.target})[0]);
  context.synchronize();
  for (int chunk = 0; chunk < flags.chunks; ++chunk) {
    const auto begin = Clock::now();
    for (int i = 0; i < flags.steps; ++i) losses.push_back(step({batch.input, batch.target})[0]);
    context.synchronize();
    times.steps.push_back(seconds_since(begin) / flags.steps);
    times.loading.push_back(0);
  }
  return times;
}

// 60,000 images as MNIST has, turned into floats on the CPU by workers, pinned, and copied while a step runs.
Times time_loader(const lockstep::Context& context, const Flags& flags, lockstep::GraphedStep& step,
                  Tensors& losses) {
  torch::manual_seed(2);
  const lockstep::data::ImageDataset images(
      torch::randint(256, {60'000, 28, 28}, at::kByte), torch::randint(10, {60'000}, at::kLong),
      {.normalize = lockstep::transforms::Normalize({0.1307}, {0.3081})});
  lockstep::data::DataLoader loader(images, {.batch_size = flags.batch_size,
                                             .shuffle = true,
                                             .num_workers = 4,
                                             .pin_memory = true,
                                             .drop_last = true,
                                             .prefetch_factor = 4,
                                             .persistent_workers = true,
                                             .device = context.device()});
  Times times;
  for (int epoch = -1; epoch < flags.chunks; ++epoch) {
    const auto begin = Clock::now();
    double loading = 0;
    for (auto batch = loader.begin(); batch != loader.end();) {
      losses.push_back(step({batch->data, batch->target})[0]);
      const auto taking = Clock::now();
      ++batch;
      loading += seconds_since(taking);
    }
    context.synchronize();
    if (epoch < 0) continue;
    times.steps.push_back(seconds_since(begin) / static_cast<double>(loader.size()));
    times.loading.push_back(loading / static_cast<double>(loader.size()));
  }
  return times;
}

// Fused, as the twin's: the same kernels, and none that a graph could not hold.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Flags& flags,
                                                        std::vector<at::Tensor> parameters) {
  if (flags.net.starts_with("gpt"))
    return std::make_unique<lockstep::optim::FusedAdamW>(std::move(parameters), 1e-3);
  return std::make_unique<lockstep::optim::FusedSGD>(std::move(parameters),
                                                     lockstep::optim::FusedSGDOptions(0.01).momentum(0.9));
}

template <typename Net>
int train(const lockstep::Context& context, const Flags& flags, Net net, const Batch& drawn) {
  const auto device = context.device();
  net->to(device);
  Batch batch{drawn.input.to(device), drawn.target.to(device)};
  if (flags.precision == "bf16_weights") net->to(at::kBFloat16);
  if (flags.fast) {
    lockstep::to_memory_format(*net, at::MemoryFormat::ChannelsLast);
    batch.input = batch.input.contiguous(at::MemoryFormat::ChannelsLast);
  }
  lockstep::DistributedDataParallel ddp(net, {.device_ids = {device}});
  std::optional<lockstep::gpu::MasterWeights> masters;
  if (flags.precision == "bf16_weights") masters.emplace(ddp->parameters());
  const auto optimizer = make_optimizer(flags, masters ? masters->copies() : ddp->parameters());
  const bool graph = flags.mode == "graph";
  lockstep::GraphedStep step(
      device,
      [&](const Tensors& in) -> Tensors {
        net->zero_grad();
        at::Tensor loss;
        {
          const lockstep::amp::Autocast autocast(
              device, {.dtype = at::kBFloat16, .enabled = flags.precision == "bf16"});
          loss = loss_of(ddp->forward(in[0]), in[1]);
        }
        loss.backward();
        if (masters) masters->take_gradients();
        optimizer->step();
        if (masters) masters->give_weights();
        return {loss.detach()};
      },
      {.optimizers = {optimizer.get()}, .modules = {ddp}, .warmup = 11, .enabled = graph});
  Tensors losses;
  auto times = flags.data == "loader" ? time_loader(context, flags, step, losses)
                                      : time_resident(context, flags, step, batch, losses);
  std::ranges::sort(times.steps);
  std::ranges::sort(times.loading);
  std::vector<std::string> texts;
  for (const auto& loss : losses) texts.push_back(fmt::format("\"{:a}\"", loss.template item<float>()));
  if (texts.size() > 200) texts.resize(200);
  std::cout << fmt::format(
      "{{\"seconds\": {:.9f}, \"fastest\": {:.9f}, \"loading\": {:.9f}, \"replays\": {}, \"losses\": "
      "[{}]}}\n",
      times.steps.at(times.steps.size() / 2), times.steps.front(), times.loading.at(times.loading.size() / 2),
      step.stats().replays, fmt::join(texts, ", "));
  return 0;
}

int run(const Flags& flags) {
  if (flags.deterministic) be_deterministic();
  at::globalContext().setBenchmarkCuDNN(flags.fast);
  const auto context = lockstep::init({.backend = "nccl"});
  return lockstep::gpu::with_net(flags.net, flags.batch_size, [&](auto net, const Batch& batch) {
    return train(context, flags, net, batch);
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
