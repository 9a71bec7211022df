// SPDX-License-Identifier: BSD-3-Clause
// A program that starts its own ranks: two processes train a net, and rank 0 returns it in a file.
//
//   build/release/bin/05_spawn
#include <filesystem>
#include <iostream>
#include <tuple>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

struct Settings {
  int steps = 400;
  double learning_rate = 1e-2;
};

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
}

// The function to learn: the product of the first two of eight numbers.
at::Tensor target_of(const at::Tensor& x) { return x.select(1, 0).mul(x.select(1, 1)).unsqueeze(1); }

// Runs in each rank, with copies of the arguments.
void train(int rank, const Settings& settings, const at::Tensor& data, const std::string& result) {
  const auto context = lockstep::init();
  torch::manual_seed(1);
  auto net = make_net();
  lockstep::DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::Adam optimizer(ddp->parameters(), settings.learning_rate);
  const auto own = data.chunk(context.world_size())[static_cast<std::size_t>(rank)].to(context.device());
  for (int step = 0; step < settings.steps; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::mse_loss(ddp->forward(own), target_of(own)).backward();
    optimizer.step();
  }
  if (!context.is_main_process()) return;
  lockstep::save(lockstep::state_dict(net), result);
}

}  // namespace

int main() {
  try {
    const auto result = std::filesystem::temp_directory_path() / "05_spawn.pt";
    const auto data = torch::randn({256, 8});
    lockstep::spawn(train, std::tuple(Settings{}, data, result.string()),
                    {.nprocs = 2, .timeout = std::chrono::minutes(5)});
    auto net = make_net();
    lockstep::load_state_dict(net, lockstep::load(result));
    const auto loss = torch::nn::functional::mse_loss(net->forward(data), target_of(data));
    std::cout << "trained by two ranks: loss " << loss.item<float>() << '\n';
    std::filesystem::remove(result);
  } catch (const std::exception& error) {
    std::cerr << "05_spawn: " << error.what() << '\n';
    return 1;
  }
}
