// SPDX-License-Identifier: BSD-3-Clause
// Continues the run of a checkpoint folder up to a step; training_folder.py has the same steps:
// training_folder <folder> <last step>
#include <cstdlib>
#include <iostream>

#include <lockstep/lockstep.h>

namespace {

double metric_of(std::int64_t step) { return static_cast<double>(step * 3 % 4) / 8; }

void train(const std::string& folder, std::int64_t last) {
  torch::manual_seed(1);
  torch::nn::Linear first(5, 7);  // arguments of a call would be made in any order
  torch::nn::Linear second(7, 2);
  torch::nn::Sequential net(first, torch::nn::Dropout(0.5), second);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  lockstep::optim::StepLR scheduler(optimizer, 2, 0.5);
  std::int64_t step = 0;
  std::string name = "first";
  lockstep::TrainingState training;
  training.add("model", net).add("optimizer", optimizer).add("scheduler", scheduler).add("step", step);
  training.add("name", name).add_generator();

  lockstep::CheckpointManager manager(folder, {.keep_last = 2, .higher_is_better = false, .sync = false});
  if (const auto found = manager.load_latest()) training.load_state_dict(found->contents.as_dict());
  while (step < last) {
    optimizer.zero_grad();
    net->forward(torch::rand({4, 5})).square().mean().backward();
    optimizer.step();
    scheduler.step();
    ++step;
    manager.save(step, training.state_dict(), metric_of(step));
  }
}

}  // namespace

int main(int, char** arguments) {
  try {
    train(arguments[1], std::atoi(arguments[2]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
