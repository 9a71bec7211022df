// SPDX-License-Identifier: BSD-3-Clause
// Trains on MNIST and continues when ranks are lost: kill one with `kill -9`, and look at the losses.
//
//   lockstep run --nproc-per-node 4 --on-loss replace --max-restarts 10 --spares 1 build/release/bin/06_elastic
//
// 06_elastic [epochs] [steps between two reports]
#include <cstdlib>
#include <iostream>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/lockstep.h>

using lockstep::data::MNIST;

// [batch, 1, 28, 28] -> [batch, 10]
torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(1, 32, 3), MaxPool2d(2), ReLU(), BatchNorm2d(32), Flatten(), Dropout(0.25),
                    Linear(5408, 128), ReLU(), Linear(128, 10));
}

void train(int epochs, std::int64_t interval) {
  // What a replacement runs too, alone: until elastic::run() its calls on the default group are simulated.
  const auto context = lockstep::init();
  torch::manual_seed(0);
  auto net = make_net();
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
  const MNIST images(
      ".data/mnist",
      {.train = true, .download = true, .normalize = lockstep::transforms::Normalize({0.5}, {0.5})});
  lockstep::data::DataLoader loader(images, {.batch_size = 32, .shuffle = true, .seed = 0});
  lockstep::manual_seed(static_cast<std::uint64_t>(context.rank()));  // other neurons drop out on each rank

  // All that changes during training.
  int epoch = 1;
  std::int64_t step = 0;
  lockstep::TrainingState state;
  state.add("model", ddp).add("optimizer", optimizer).add("loader", loader);
  state.add("epoch", epoch).add("step", step).add_generator();

  lockstep::elastic::run(state, [&](const lockstep::Context& run) {
    std::cout << fmt::format("rank {} is process {} and continues at step {}\n", run.rank(), ::getpid(), step)
              << std::flush;
    for (; epoch <= epochs; ++epoch) {
      loader.set_epoch(epoch);
      for (auto& [inputs, targets] : loader) {
        optimizer.zero_grad();
        auto loss = torch::nn::functional::cross_entropy(ddp->forward(inputs), targets);
        loss.backward();
        optimizer.step();
        ++step;
        if (step % interval == 0 && run.is_main_process()) {
          std::cout << fmt::format("step {}: loss {:.6f}\n", step, loss.item<double>()) << std::flush;
        }
        state.commit();  // where all ranks return to when one is lost
      }
    }
  });
  const auto norm = torch::nn::utils::parameters_to_vector(net->parameters()).norm().item<double>();
  if (context.is_main_process())
    std::cout << fmt::format("done after {} steps: norm of the weights {:.9f}\n", step, norm);
}

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? std::atoi(argv[1]) : 3, argc > 2 ? std::atoi(argv[2]) : 50);
  } catch (const std::exception& error) {
    std::cerr << "06_elastic: " << error.what() << std::endl;
    return 1;
  }
}
