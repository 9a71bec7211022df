// SPDX-License-Identifier: BSD-3-Clause
// A rank that trains for some steps and does itself harm: training_rank faulty <folder> <rank> <harm> <where> <step>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <sys/resource.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::testing::faulty {
namespace {

constexpr int kSteps = 12;

struct Plan {
  std::string folder;
  int rank;
  std::string harm;
  std::string where;
  int step;
};

[[noreturn]] void unknown(const std::string& harm) { throw std::invalid_argument("harm " + harm); }

void do_harm(const std::string& harm) {
  if (harm == "exit") std::_Exit(7);
  if (harm == "return") std::exit(7);
  if (harm == "throw") throw std::runtime_error("the planned exception");
  if (harm == "abort") std::abort();
  if (harm == "kill") std::raise(SIGKILL);
  if (harm == "term") std::raise(SIGTERM);
  if (harm == "segv") std::raise(SIGSEGV);
  if (harm == "stop") {
    std::raise(SIGSTOP);
    return;
  }
  if (harm != "none") unknown(harm);
}

class Victim {
 public:
  explicit Victim(Plan plan) : plan_(std::move(plan)) {}

  void at(std::string_view where, int step) const {
    const char* rank = std::getenv("RANK");
    if (where == plan_.where && step == plan_.step && std::atoi(rank) == plan_.rank) do_harm(plan_.harm);
  }

 private:
  Plan plan_;
};

void train(const Plan& plan, const Victim& victim) {
  victim.at("startup", 0);
  const auto context = lockstep::init({.timeout = std::chrono::seconds(10)});
  std::cout << "met " << context.rank() << std::endl;
  torch::nn::Linear net(64, 64);
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.01);
  lockstep::CheckpointManager manager(plan.folder);
  // The folder may have checkpoints of earlier runs; new step numbers must be above theirs.
  const auto latest = manager.load_latest();
  const auto first = latest ? latest->info.step + 1 : 0;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = ddp->forward(torch::ones({8, 64})).sum();
    victim.at("collective", step);
    loss.backward();
    optimizer.step();
    victim.at("save", step);
    manager.save(first + step, lockstep::state_dict(*net));
  }
  context.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (argc != 6) return 2;
  const Plan plan{.folder = argv[1],
                  .rank = std::stoi(argv[2]),
                  .harm = argv[3],
                  .where = argv[4],
                  .step = std::stoi(argv[5])};
  train(plan, Victim(plan));
  return 0;
}

}  // namespace lockstep::testing::faulty
