// SPDX-License-Identifier: BSD-3-Clause
// What SLURM's tests run: sums over all ranks, then does what the first argument says.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

namespace {

void tell_sum(const lockstep::Context& context) {
  auto sum = torch::full({1}, static_cast<double>(context.rank() + 1));
  context.group().all_reduce(sum);
  std::cout << fmt::format("rank {} of {}, local {} of {}: the sum is {}\n", context.rank(),
                           context.world_size(), context.local_rank(), context.local_world_size(),
                           sum.item<double>())
            << std::flush;
}

[[noreturn]] void wait_for_a_signal() {
  for (;;) ::pause();
}

void act(std::string_view what, const lockstep::Context& context) {
  if (what == "wait") wait_for_a_signal();
  if (what == "lose-rank-1") {
    if (context.rank() == 1) std::raise(SIGKILL);
    context.barrier();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  try {
    const auto context = lockstep::init({.backend = what == "mpi" ? "mpi" : "auto"});
    tell_sum(context);
    act(what, context);
  } catch (const std::exception& error) {
    std::cerr << "slurm_rank: " << error.what() << '\n';
    return 1;
  }
}
