// SPDX-License-Identifier: BSD-3-Clause
// A program that starts its own ranks, which train on MNIST with snapshots that the next start continues
// from.
//
//   build/release/bin/spawn_mnist --nprocs 2 --epochs 4 --save-every 2
#include <iostream>

#include <CLI/CLI.hpp>

#include <lockstep/lockstep.h>

using namespace lockstep;
using torch::nn::functional::cross_entropy;

struct Flags {
  int nprocs = 2;
  std::int64_t epochs = 2, save_every = 1, batch_size = 64, random = 0;
  std::string data_dir = ".data/mnist", run = "spawn_mnist-run";
};

// [batch, 1, 28, 28] -> [batch, 10]
torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(1, 16, 3), ReLU(), MaxPool2d(2), Conv2d(16, 32, 3), ReLU(), MaxPool2d(2),
                    Flatten(), Linear(800, 10));
}

template <typename Dataset>
void train_on(const Dataset& train_set, const Dataset& test_set, const Flags& flags, const Context& context) {
  torch::manual_seed(0);
  data::DataLoader loader(
      train_set, {.batch_size = flags.batch_size, .shuffle = true, .seed = 0, .device = context.device()});
  data::DataLoader test_loader(test_set, {.batch_size = 500,
                                          .sampler = std::make_shared<data::DistributedEvalSampler>(test_set),
                                          .device = context.device()});
  auto net = make_net();
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Trainer trainer(ddp, optimizer,
                  {.epochs = flags.epochs,
                   .checkpoints = flags.run,
                   .epochs_per_checkpoint = flags.save_every,
                   .resume = true,
                   .progress = true});
  trainer.on_log(console_logger()).on_validate([&] {
    metrics::Accuracy accuracy;
    for (auto& [images, labels] : test_loader) accuracy.update(net->forward(images), labels);
    return Scalars{{"accuracy", accuracy.compute()}};
  });
  trainer.fit(loader, [&](auto& batch) { return cross_entropy(ddp->forward(batch.data), batch.target); });
  if (context.is_main_process()) std::cout << "trained " << trainer.epoch() << " epochs\n";
}

data::TensorDataset random_images(std::int64_t count) {
  return {torch::rand({count, 1, 28, 28}), torch::randint(10, {count})};
}

// Runs in each rank.
void train(int /*rank*/, const Flags& flags) {
  const auto context = init();
  if (flags.random != 0) {
    torch::manual_seed(1);
    return train_on(random_images(flags.random), random_images(100), flags, context);
  }
  const transforms::Normalize normalize({0.1307}, {0.3081});
  const auto mnist = [&](bool is_train) {
    return data::MNIST(flags.data_dir, {.train = is_train, .download = true, .normalize = normalize});
  };
  train_on(mnist(true), mnist(false), flags, context);
}

int main(int argc, char** argv) {
  CLI::App app("Trains on MNIST in ranks that it starts itself");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--nprocs", flags.nprocs, "Ranks")->check(CLI::PositiveNumber);
  app.add_option("--epochs", flags.epochs);
  app.add_option("--save-every", flags.save_every, "Epochs between snapshots")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", flags.batch_size, "Images per step and rank");
  app.add_option("--data-dir", flags.data_dir, "Folder of the MNIST files; missing files are downloaded");
  app.add_option("--random", flags.random, "Train on so many random images instead, without a download");
  app.add_option("--run", flags.run, "Folder of the snapshots");
  CLI11_PARSE(app, argc, argv);
  try {
    spawn(train, std::tuple(flags), {.nprocs = flags.nprocs});
  } catch (const std::exception& error) {
    std::cerr << "spawn_mnist: " << error.what() << std::endl;
    return 1;
  }
}
