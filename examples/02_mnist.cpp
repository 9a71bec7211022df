// SPDX-License-Identifier: BSD-3-Clause
// Trains a small convolutional net on MNIST, in one process or in many.
//
//   build/release/bin/02_mnist
//   lockstep run --nproc-per-node 2 build/release/bin/02_mnist --epochs 3 --checkpoints mnist
//   lockstep run --nproc-per-node 2 build/release/bin/02_mnist --epochs 6 --checkpoints mnist --resume
#include <chrono>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using lockstep::data::DataLoader;
using lockstep::data::MNIST;

// [batch, 1, 28, 28] -> [batch, 10]
torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(1, 32, 3), MaxPool2d(2), ReLU(), Conv2d(32, 64, 3), MaxPool2d(2), ReLU(),
                    Dropout2d(0.25), Flatten(), Linear(1600, 500), ReLU(), Dropout(0.5), Linear(500, 10));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Flags {
  int epochs = 5;
  std::int64_t batch_size = 128;
  double lr = 1e-2;
  std::string data_dir = ".data/mnist";
  std::string checkpoints;
  std::int64_t interval = 100;
  bool resume = false;
};

// Every test image is on exactly one rank.
double accuracy(torch::nn::Sequential net, const MNIST& dataset, const lockstep::Context& context) {
  const torch::NoGradGuard no_grad;
  net->eval();
  auto sampler = std::make_shared<lockstep::data::DistributedEvalSampler>(dataset);
  DataLoader loader(dataset, {.batch_size = 500, .sampler = sampler, .device = context.device()});
  auto counts = torch::zeros({2}, torch::dtype(torch::kLong).device(context.device()));  // correct, all
  for (auto& [images, labels] : loader) {
    counts[0] += net->forward(images).argmax(1).eq(labels).sum();
    counts[1] += labels.size(0);
  }
  context.group().all_reduce(counts);
  return counts[0].item<double>() / counts[1].item<double>();
}

void train(const Flags& flags) {
  const auto context = lockstep::init();  // joins the launcher's run, or makes a run of one process
  const auto print = [&](const std::string& line) {
    if (context.is_main_process()) std::cout << line << std::endl;
  };
  torch::manual_seed(0);
  auto net = make_net();
  lockstep::DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(ddp->parameters(), flags.lr);
  const lockstep::transforms::Normalize normalize({0.5}, {0.5});
  const MNIST train_set(flags.data_dir, {.train = true, .download = true, .normalize = normalize});
  const MNIST test_set(flags.data_dir, {.train = false, .download = true, .normalize = normalize});
  DataLoader loader(  // shards over the ranks, and copies the batches to the device
      train_set, {.batch_size = flags.batch_size, .shuffle = true, .seed = 0, .device = context.device()});

  // The parts of a checkpoint: a resumed run continues at the next step with the same bits.
  int epoch = 1;
  std::int64_t step = 0;
  lockstep::TrainingState state;
  state.add("model", ddp).add("optimizer", optimizer).add("loader", loader);
  state.add("epoch", epoch).add("step", step).add_generator();
  std::optional<lockstep::CheckpointManager> manager;
  if (!flags.checkpoints.empty()) manager.emplace(flags.checkpoints);
  if (auto saved = flags.resume ? manager->load_latest() : std::nullopt) {
    state.load_state_dict(saved->contents);
    print(fmt::format("resumed after step {}", step));
  }

  const double run_start = now();
  double correct = 0;
  for (; epoch <= flags.epochs; ++epoch) {
    const double start = now();
    net->train();
    loader.set_epoch(epoch);
    auto totals = torch::zeros({2}, torch::kDouble);  // loss times samples, samples
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(ddp->forward(images), labels);
      loss.backward();  // averages the gradients over the ranks
      optimizer.step();
      totals += torch::tensor({loss.item<double>(), 1.0}, torch::kDouble) * labels.size(0);
      if (++step % flags.interval != 0) continue;
      if (manager) manager->save(step, state.state_dict());
      print(fmt::format("step {}: loss {:.4f}", step, loss.item<double>()));
    }
    context.group().all_reduce(totals);
    const double seconds = now() - start;
    correct = 100 * accuracy(net, test_set, context);
    print(fmt::format("epoch {}/{}: loss {:.4f}, test accuracy {:.2f}%, {:.1f} s, {:.0f} images/s", epoch,
                      flags.epochs, (totals[0] / totals[1]).item<double>(), correct, seconds,
                      totals[1].item<double>() / seconds));
  }
  print(fmt::format("done: {} epochs on {} rank{} in {:.1f} s, test accuracy {:.2f}%", flags.epochs,
                    context.world_size(), context.world_size() == 1 ? "" : "s", now() - run_start, correct));
}

int main(int argc, char** argv) {
  CLI::App app("Trains a small convolutional net on MNIST, in as many processes as it is started with");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--epochs", flags.epochs, "Passes over the training images")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", flags.batch_size, "Images per step and rank")->check(CLI::PositiveNumber);
  app.add_option("--lr", flags.lr, "Learning rate of SGD");
  app.add_option("--data-dir", flags.data_dir, "Folder of the MNIST files; missing files are downloaded");
  auto* folder =
      app.add_option("--checkpoints", flags.checkpoints, "Folder for checkpoints; none by default");
  app.add_option("--interval", flags.interval, "Steps per checkpoint and report")->check(CLI::PositiveNumber);
  app.add_flag("--resume", flags.resume, "Continue from the newest checkpoint, if any")->needs(folder);
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "02_mnist: " << error.what() << std::endl;
    return 1;
  }
}
