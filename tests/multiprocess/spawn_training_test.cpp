// SPDX-License-Identifier: BSD-3-Clause
// Ranks of spawn() train as others do, whatever the program did with LibTorch before.
#include <filesystem>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/spawn/spawn.h>

#include "base/env.h"
#include "base/shared_memory.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::spawn_training_test {
namespace {

constexpr int kRanks = 2;
constexpr int kThreads = 2;

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out->forward(at::relu(conv->forward(x)).flatten(1)); }
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(3, 8, 3))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(8 * 14 * 14, 10))};
};
TORCH_MODULE(Net);

// All parameters after some steps with data of each rank's own.
at::Tensor train(const Context& context) {
  manual_seed(1);
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  manual_seed(100 + static_cast<std::uint64_t>(context.rank()));
  for (int step = 0; step < 5; ++step) {
    const auto images = torch::randn({16, 3, 16, 16});
    const auto labels = torch::randint(10, {16}, at::kLong);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(ddp->forward(images), labels).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> flat;
  for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

std::ptrdiff_t threads_here() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

at::Tensor trained_by_spawn(const std::string& backend) {
  const std::int64_t size = Net()->parameters()[0].numel() + 8 + 8 * 14 * 14 * 10 + 10;
  const auto memory = SharedMemory::create("trained", static_cast<std::size_t>(size) * sizeof(float));
  const auto shared = at::from_blob(memory.data(), {size}, at::kFloat);
  spawn(
      [&](int rank) {
        const auto context = init({.backend = backend});
        const auto trained = train(context);
        if (at::get_num_threads() != kThreads || threads_here() < kThreads) {
          throw std::runtime_error("operators do not use several threads");
        }
        if (rank == 0) shared.copy_(trained);
        context.barrier();
      },
      {.nprocs = kRanks, .timeout = std::chrono::seconds(100), .threads_per_rank = kThreads});
  return shared.clone();
}

at::Tensor trained_by_threads(const std::string& backend) {
  at::Tensor result;
  spawn_threads(kRanks,
                [&](Context& context) {
                  const auto trained = train(context);
                  if (context.is_main_process()) result = trained;
                },
                {.backend = backend, .threads_per_rank = kThreads});
  return result;
}

// What a program may do before: operators in several threads, convolutions, backward, LibTorch's pools.
void use_libtorch() {
  at::set_num_threads(4);
  auto a = torch::randn({600, 600}).requires_grad_();
  a.matmul(a).sum().backward();
  Net net;
  net->forward(torch::randn({32, 3, 16, 16})).sum().backward();
  at::parallel_for(0, 1000, 1, [](std::int64_t, std::int64_t) {});
  EXPECT_GT(threads_here(), 4) << "LibTorch has no workers, so that this test tests little";
}

const testing::Scenario after_use("spawn training: after use", [] {
  use_libtorch();
  for (const char* backend : {"shm", "gloo"}) {
    const auto trained = trained_by_spawn(backend);
    use_libtorch();
    EXPECT_TRUE(torch::equal(trained, trained_by_threads(backend))) << backend;
    EXPECT_TRUE(torch::equal(trained, trained_by_spawn(backend))) << backend << " after spawn_threads";
  }
});
TEST(SpawnTraining, HasTheBitsOfThreadRanksAfterLibTorchWasUsed) {
  testing::expect_all_passed(testing::run_ranks(
      after_use, {.world_size = 1, .env = {{"OMP_NUM_THREADS", ""}}, .timeout = std::chrono::seconds(100)}));
}

const testing::Scenario launched("spawn training: launched", [] {
  const auto trained = train(init({.backend = *Env().get("TEST_BACKEND")}));
  if (*Env().get("RANK") == "0") torch::save(trained, *Env().get("TEST_FILE"));
});
const testing::Scenario spawned("spawn training: spawned", [] {
  torch::save(trained_by_spawn(*Env().get("TEST_BACKEND")), *Env().get("TEST_FILE"));
});

TEST(SpawnTraining, HasTheBitsOfLaunchedRanks) {
  const testing::TempFolder folder;
  for (const char* backend : {"shm", "gloo"}) {
    const auto run = [&](const testing::Scenario& scenario, int world_size) {
      const auto file = folder.file(scenario.name());
      testing::expect_all_passed(
          testing::run_ranks(scenario, {.world_size = world_size,
                                        .env = {{"TEST_BACKEND", backend},
                                                {"TEST_FILE", file},
                                                {"OMP_NUM_THREADS", std::to_string(kThreads)}},
                                        .timeout = std::chrono::seconds(100)}));
      at::Tensor trained;
      torch::load(trained, file);
      return trained;
    };
    EXPECT_TRUE(torch::equal(run(launched, kRanks), run(spawned, 1))) << backend;
  }
}

}  // namespace
}  // namespace lockstep::spawn_training_test
