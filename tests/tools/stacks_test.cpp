// SPDX-License-Identifier: BSD-3-Clause
// `lockstep stacks` on real ranks, which know nothing of it.
#include <csignal>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "support/launcher_process.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;

[[noreturn, gnu::noinline]] void read_a_batch_for_ever() {
  while (true) ::pause();
}

const testing::Scenario is_stuck("stacks: rank 1 is stuck", [] {
  const auto context = init({.backend = "shm", .timeout = 40s});
  context.barrier();
  if (context.rank() == 1) read_a_batch_for_ever();
  auto x = torch::ones({4});
  context.group().all_reduce(x);
});

TEST(StacksCommand, ShowsTheFunctionInWhichARankIsStuck) {
  testing::run_ranks(
      is_stuck, {.while_running = [](const std::vector<int>& pids) {
        std::string out;
        const Deadline deadline(30s);
        const auto shown = ContainsRegex(
            "rank 0 \\(pid [0-9]+\\): in all_reduce #2 of Float\\[4\\] at stacks_test.cpp:[0-9]+ of group "
            "(.|\n)*rank 1 \\(pid [0-9]+\\): in the program's own code\n(.|\n)*read_a_batch_for_ever");
        while (!::testing::Matches(shown)(out) && !deadline.expired()) {
          testing::LauncherProcess process({"stacks", std::to_string(pids[0])});
          process.finish();  // it fails until the ranks have met
          out = process.out() + process.err();
        }
        EXPECT_THAT(out, shown);
        for (const int pid : pids) ::kill(pid, SIGKILL);
      }});
}

}  // namespace
}  // namespace lockstep
