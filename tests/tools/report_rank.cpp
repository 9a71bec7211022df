// SPDX-License-Identifier: BSD-3-Clause
// Trains on each rank, once the launcher looks at all of them:
// report_rank <steps> [<rank that is killed at the end> [stuck]]. "stuck": it waits without an end instead.
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/rendezvous/init.h>

#include "base/rank_progress.h"
#include "observe/processes.h"

namespace {

// The launcher is above the supervisor of the ranks.
void await_observer(int ranks) {
  const auto maps = fmt::format("/proc/{}/maps", lockstep::observe::status_number(::getppid(), "PPid:"));
  for (int seen = 0; seen < ranks; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    seen = 0;
    std::ifstream file(maps);
    for (std::string line; std::getline(file, line);)
      seen += line.find(lockstep::kProgressName) != line.npos ? 1 : 0;
  }
}

[[noreturn, gnu::noinline]] void wait_without_end() {
  while (true) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = std::stoi(argv[1]);
  const int victim = argc > 2 ? std::stoi(argv[2]) : -1;
  const auto context = lockstep::init({.backend = "shm"});
  torch::nn::Sequential net(torch::nn::Linear(8, 4));
  lockstep::DistributedDataParallel ddp(net);
  await_observer(context.world_size());
  for (int step = 0; step < steps; ++step) {
    const auto loss = ddp->forward(torch::ones({2, 8})).sum();
    loss.backward();
    lockstep::report_number("loss", steps - step);
  }
  context.barrier();
  if (context.rank() == victim && argc > 3) wait_without_end();
  if (context.rank() == victim) ::raise(SIGKILL);
  if (victim >= 0) context.barrier();
}
