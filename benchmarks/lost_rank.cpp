// SPDX-License-Identifier: BSD-3-Clause
// One rank of those that run_failures.py starts. With --formings the ranks form their group again so often,
// and print the milliseconds that each took. Otherwise one of them is killed: sums small and large tensors
// until a rank is lost, and tells when that was on the clock that all processes of a host share.
#include <chrono>
#include <iostream>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::bench::lost_rank {
namespace {

struct Flags {
  std::string meeting;
  std::string backend = "shm";
  int rank = 0;
  int ranks = 2;
  int formings = 0;
};

Flags parse(int argc, char** argv) {
  Flags flags;
  CLI::App app("Sums tensors until a rank is lost");
  app.add_option("--meeting", flags.meeting, "a file that does not exist yet, for all ranks the same")
      ->required();
  app.add_option("--backend", flags.backend);
  app.add_option("--rank", flags.rank)->required();
  app.add_option("--ranks", flags.ranks)->required();
  app.add_option("--formings", flags.formings);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return flags;
}

[[noreturn]] void sum_for_ever(const lockstep::ProcessGroup& group) {
  const auto small = torch::ones({256});
  const auto large = torch::ones({1'000'000});
  while (true) {
    for (int i = 0; i < 10; ++i) group.all_reduce(small, lockstep::ReduceOp::MAX);
    group.all_reduce(large, lockstep::ReduceOp::MAX);
  }
}

// The handles are exchanged before; a large tensor is in registered memory.
void form_again(const lockstep::Context& context, int formings) {
  const auto large = context.group().backend()->allocateTensor(25'000'000, at::kFloat).zero_();
  for (int uuid = 0; uuid < formings; ++uuid) {
    const auto handles = context.group().all_gather_object(context.group().reconfigure_handle());
    context.barrier();
    const auto begin = std::chrono::steady_clock::now();
    context.reconfigure({.uuid = uuid, .handles = handles});
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
    std::cout << taken.count() << "\n";
    context.group().all_reduce(large);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto flags = parse(argc, argv);
  at::set_num_threads(1);
  const auto context = lockstep::init({.backend = flags.backend,
                                       .init_method = "file://" + flags.meeting,
                                       .world_size = flags.ranks,
                                       .rank = flags.rank});
  context.barrier();
  if (flags.formings > 0) {
    form_again(context, flags.formings);
    return 0;
  }
  std::cout << "ready" << std::endl;
  try {
    sum_for_ever(context.group());
  } catch (const lockstep::PeerLost& error) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    std::cout << std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() << "\n"
              << error.what() << std::endl;
  }
  return 0;
}

}  // namespace lockstep::bench::lost_rank
