// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training that signals interrupt: training_rank preempted <loop|elastic|trainer> <steps> <folder>
//
// Continues from the newest checkpoint of the folder. Writes "pid <pid> of <rank> at step <step>" when it begins to
// train; at the end "saved <rank>: step <step>" and exits with kExitInterrupted, or "trained <rank>: <digest>". Before its
// last steps it waits for the file <folder>/enough or, in its own loops, for a signal.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "faults/small_training.h"

namespace lockstep::testing::preempted {
namespace {

namespace testing = lockstep::testing;
using torch::nn::functional::cross_entropy;

constexpr std::int64_t kStepsAfterWait = 3;

auto make_loader() {
  return lockstep::data::DataLoader(testing::Numbers(), {.batch_size = 5, .shuffle = true, .num_workers = 1});
}

struct Training {
  explicit Training(lockstep::Context its_context, std::int64_t its_steps, std::filesystem::path its_folder)
      : context(std::move(its_context)), steps(its_steps), folder(std::move(its_folder)) {
    torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  }

  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  void tell_begin(std::int64_t step) const {
    std::cout << "pid " << ::getpid() << " of " << context.rank() << " at step " << step << std::endl;
  }
  int tell_end(bool interrupted, std::int64_t step) const {
    if (interrupted) {
      std::cout << "saved " << context.rank() << ": step " << step << std::endl;
      return lockstep::kExitInterrupted;
    }
    std::cout << "trained " << context.rank() << ": " << testing::digest(*net) << std::endl;
    return 0;
  }

  static torch::nn::Sequential seeded_net() {
    torch::manual_seed(7);
    return testing::make_net();
  }

  lockstep::Context context;
  std::int64_t steps;
  std::filesystem::path folder;
  torch::nn::Sequential net = seeded_net();
  lockstep::DistributedDataParallel<torch::nn::Sequential> ddp{net};
  torch::optim::AdamW optimizer{ddp->parameters(), 1e-3};
  decltype(make_loader()) loader = make_loader();
};

int train_with_trainer(Training& training) {
  lockstep::Trainer trainer(
      training.ddp, training.optimizer,
      {.max_steps = training.steps, .checkpoints = training.checkpoints(), .resume = true});
  bool begins = true;
  trainer.fit(training.loader, [&](auto& batch) {
    if (std::exchange(begins, false)) training.tell_begin(trainer.step());
    if (trainer.step() == training.steps - kStepsAfterWait)
      testing::wait_for(training.folder / "enough", training.context);
    return cross_entropy(training.ddp->forward(batch.data), batch.target);
  });
  return training.tell_end(trainer.interrupted(), trainer.step());
}

int train_in_loop(Training& training, bool is_elastic) {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  lockstep::TrainingState state;
  state.add("model", training.ddp).add("optimizer", training.optimizer).add("loader", training.loader);
  state.add("step", step).add("epoch", epoch).add_generator();

  lockstep::StopSignals signals;
  bool interrupted = false;
  if (auto checkpoint = lockstep::CheckpointManager(training.checkpoints()).load_latest())
    state.load_state_dict(checkpoint->contents.as_dict());
  const auto train = [&](const lockstep::Context& context) {
    training.tell_begin(step);
    for (; step < training.steps; ++epoch) {
      training.loader.set_epoch(epoch);
      for (const auto& [inputs, targets] : training.loader) {
        if (step == training.steps - kStepsAfterWait)
          testing::wait_for(training.folder / "enough", context, [&] { return signals.should_stop(); });
        cross_entropy(training.ddp->forward(inputs), targets).backward();
        training.optimizer.step();
        training.optimizer.zero_grad();
        ++step;
        state.commit();
        interrupted = signals.should_stop();
        if (interrupted) {
          lockstep::CheckpointManager(training.checkpoints()).save(step, state.state_dict());
          return;
        }
        if (step == training.steps) return;
      }
    }
  };
  if (is_elastic) {
    lockstep::elastic::run(state, train);
  } else {
    train(training.context);
  }
  return training.tell_end(interrupted, step);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string_view mode = argv[1];
  try {
    Training training(lockstep::init({.timeout = 60}), std::atoll(argv[2]), argv[3]);
    if (mode == "trainer") return train_with_trainer(training);
    return train_in_loop(training, mode == "elastic");
  } catch (const std::exception& error) {
    std::cerr << "training_rank preempted: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace lockstep::testing::preempted
