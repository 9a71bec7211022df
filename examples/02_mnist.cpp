// SPDX-License-Identifier: BSD-3-Clause
// Trains a small convolutional net on MNIST: as one plain process, or on many.
//
//   build/release/bin/02_mnist
//   lockstep run --nproc-per-node 2 build/release/bin/02_mnist --epochs 3
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Dropout2d dropout1{register_module("dropout1", torch::nn::Dropout2d(0.25))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(1600, 500))};
  torch::nn::Dropout dropout2{register_module("dropout2", torch::nn::Dropout(0.5))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(500, 10))};

  // [batch, 1, 28, 28] -> [batch, 10]
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));
    x = dropout1->forward(x).flatten(1);
    return fc2->forward(dropout2->forward(torch::relu(fc1->forward(x))));
  }
};
TORCH_MODULE(Net);

struct Flags {
  int epochs = 5;
  std::int64_t batch_size = 128;
  double lr = 1e-2;
  std::int64_t seed = 0;
  std::string backend = "auto";
  int threads = 0;
  std::string data_dir;
  bool download = false;
  std::string checkpoint;
  std::int64_t max_steps = 0;
  std::int64_t log_interval = 0;
  bool json = false;
  bool no_ddp = false;
  std::string amp = "none";
  bool channels_last = false;
};

void add_flags(CLI::App& app, Flags& flags) {
  app.add_option("--epochs", flags.epochs, "Passes over the training images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size", flags.batch_size, "Images a step, on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", flags.lr, "Learning rate of SGD")->capture_default_str();
  app.add_option("--seed", flags.seed, "Seed of weights, order and dropout")->capture_default_str();
  app.add_option("--backend", flags.backend, "auto, gloo, ...")->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "Intra-op threads of each rank; 0: OMP_NUM_THREADS or LibTorch's choice")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--data-dir", flags.data_dir,
                 "Where the MNIST files are; not given: .data/mnist, with --download");
  app.add_flag("--download", flags.download,
               "Download what is missing or damaged in --data-dir, made if need be");
  app.add_option("--checkpoint", flags.checkpoint,
                 "File that the main rank saves the weights to, for torch.load(), too");
  app.add_option("--max-steps", flags.max_steps, "Stop each epoch after so many steps; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--log-interval", flags.log_interval,
                 "Print a line every so many steps; 0: now and then, or a bar on a terminal")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--json", flags.json, "One JSON object an epoch on stdout instead of text");
  app.add_flag("--no-ddp", flags.no_ddp, "Train the bare module; one process only");
  app.add_option("--amp", flags.amp, "Mixed precision: compute in this type where that is enough")
      ->check(CLI::IsMember({"none", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_flag("--channels-last", flags.channels_last, "Lay out images and convolutions with channels last");
}

// A bar that redraws itself on a terminal, a plain line every few seconds elsewhere; on the main rank.
class Progress {
 public:
  Progress(bool enabled, int epoch, std::int64_t steps, std::int64_t log_interval)
      : enabled_(enabled), epoch_(epoch), steps_(steps), log_interval_(log_interval) {}
  ~Progress() {
    if (enabled_ && terminal_ && drawn_) std::cout << "\r\033[K" << std::flush;
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t step, double loss) {
    if (!enabled_ || !is_due(step)) return;
    const double share = static_cast<double>(step) / static_cast<double>(steps_);
    if (terminal_) {
      const std::string bar(static_cast<std::size_t>(30 * share), '#');
      std::cout << fmt::format("\repoch {} [{:<30}] {}/{} loss {:.4f}", epoch_, bar, step, steps_, loss)
                << std::flush;
    } else {
      std::cout << fmt::format("epoch {}: step {}/{}, loss {:.4f}", epoch_, step, steps_, loss) << std::endl;
    }
    drawn_ = true;
    next_ = Clock::now() + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(5));
  }

 private:
  bool is_due(std::int64_t step) const {
    return log_interval_ > 0 ? step % log_interval_ == 0 : Clock::now() >= next_;
  }

  bool enabled_;
  int epoch_;
  std::int64_t steps_;
  std::int64_t log_interval_;
  bool terminal_ = log_interval_ == 0 && ::isatty(STDOUT_FILENO) == 1;
  bool drawn_ = false;
  Clock::time_point next_ = Clock::now() + (terminal_ ? std::chrono::seconds(0) : std::chrono::seconds(2));
};

// The averaged gradient of the last bias is not finite on every rank as soon as one rank's loss is not: so
// all ranks see it in the same step.
void stop_unless_finite(double loss, const Net& net, int epoch, std::int64_t step) {
  if (std::isfinite(loss) && net->fc2->bias.grad().isfinite().all().item<bool>()) return;
  throw std::runtime_error(
      fmt::format("rank {}: the loss is not finite in epoch {}, step {} (here it is {}); try a "
                  "smaller --lr",
                  lockstep::get_rank(), epoch, step, loss));
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
EpochResult train_epoch(Model& model, Net net, Loader& loader, torch::optim::Optimizer& optimizer,
                        lockstep::amp::GradScaler& scaler, const lockstep::Context& context,
                        const Flags& flags, int epoch) {
  net->train();
  loader.set_epoch(epoch);
  const auto steps = flags.max_steps > 0 ? std::min(flags.max_steps, loader.size()) : loader.size();
  Progress progress(context.is_main() && !flags.json, epoch, steps, flags.log_interval);
  const auto start = Clock::now();
  auto totals = torch::zeros({2}, torch::kDouble);  // loss times samples, samples
  std::int64_t step = 0;
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    auto loss = loss_of(model, images, labels, context, flags);
    scaler.scale(loss).backward();  // gradients are averaged while this runs
    const double value = loss.template item<double>();
    ++step;
    if (!scaler.is_enabled()) stop_unless_finite(value, net, epoch, step);
    scaler.step(optimizer);
    scaler.update();
    totals[0] += value * static_cast<double>(labels.size(0));
    totals[1] += labels.size(0);
    progress.update(step, value);
    if (step == steps) break;
  }
  context.group().all_reduce(totals);
  return {.loss = (totals[0] / totals[1]).item<double>(),
          .samples = totals[1].item<std::int64_t>(),
          .seconds = std::chrono::duration<double>(Clock::now() - start).count()};
}

// Every test image is counted on exactly one rank.
double accuracy(Net net, const lockstep::data::MNIST& dataset, const lockstep::Context& context) {
  const torch::NoGradGuard no_grad;
  net->eval();
  auto loader = lockstep::data::make_loader(
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
void train(Model& model, Net net, const lockstep::Context& context, const Flags& flags) {
  using lockstep::data::MNIST;
  const lockstep::data::Normalize normalize{.mean = {0.5}, .std = {0.5}};
  const bool own_folder = flags.data_dir.empty();
  const std::string folder = own_folder ? ".data/mnist" : flags.data_dir;
  const bool download = own_folder || flags.download;
  const MNIST train_set(folder, {.train = true, .download = download, .normalize = normalize});
  const MNIST test_set(folder, {.train = false, .download = download, .normalize = normalize});
  auto loader = lockstep::data::make_loader(
      train_set, {.batch_size = flags.batch_size, .shuffle = true, .seed = flags.seed});
  torch::optim::SGD optimizer(model->parameters(), flags.lr);
  lockstep::amp::GradScaler scaler(context.device(), {.enabled = flags.amp == "fp16"});

  const auto start = Clock::now();
  double last_accuracy = 0;
  for (int epoch = 1; epoch <= flags.epochs; ++epoch) {
    const auto result = train_epoch(model, net, loader, optimizer, scaler, context, flags, epoch);
    last_accuracy = accuracy(net, test_set, context);
    if (!context.is_main()) continue;
    const double speed = static_cast<double>(result.samples) / result.seconds;
    if (flags.json) {
      std::cout << nlohmann::json{{"epoch", epoch},
                                  {"loss", result.loss},
                                  {"accuracy", last_accuracy},
                                  {"seconds", result.seconds},
                                  {"samples_per_second", speed},
                                  {"world_size", context.world_size()}}
                << std::endl;
    } else {
      std::cout << fmt::format("epoch {}/{}: loss {:.4f}, test accuracy {:.2f}%, {:.1f} s, {:.0f} images/s",
                               epoch, flags.epochs, result.loss, 100 * last_accuracy, result.seconds, speed)
                << std::endl;
    }
  }
  if (!context.is_main()) return;
  if (!flags.checkpoint.empty()) lockstep::save(lockstep::state_dict(net), flags.checkpoint);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (flags.json) {
    const nlohmann::json summary{{"epochs", flags.epochs},
                                 {"accuracy", last_accuracy},
                                 {"seconds", seconds},
                                 {"world_size", context.world_size()}};
    std::cout << nlohmann::json{{"summary", summary}} << std::endl;
  } else {
    std::cout << fmt::format("done: {} epochs on {} rank{} in {:.1f} s, test accuracy {:.2f}%{}",
                             flags.epochs, context.world_size(), context.world_size() == 1 ? "" : "s",
                             seconds, 100 * last_accuracy,
                             flags.checkpoint.empty() ? "" : ", weights in " + flags.checkpoint)
              << std::endl;
  }
}

void run(const Flags& flags) {
  const auto context = lockstep::init({.backend = flags.backend});
  if (flags.threads > 0) torch::set_num_threads(flags.threads);
  torch::manual_seed(flags.seed);
  Net net;
  if (flags.channels_last) lockstep::to_memory_format(net, at::MemoryFormat::ChannelsLast);
  if (flags.no_ddp) {
    if (context.world_size() > 1)
      throw std::runtime_error("--no-ddp is for one process; this is one of several");
    net->to(context.device());
    train(net, net, context, flags);
  } else {
    lockstep::DistributedDataParallel ddp(net, {.device = context.device()});
    train(ddp, net, context, flags);
  }
}

int main(int argc, char** argv) {
  CLI::App app("Trains a small convolutional net on MNIST, on as many processes as it is started with");
  Flags flags;
  add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  try {
    run(flags);
  } catch (const std::exception& error) {
    std::cerr << "02_mnist: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
