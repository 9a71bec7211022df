// SPDX-License-Identifier: BSD-3-Clause
// A random rank is killed or stopped at a random moment of random calls, again and again: every survivor has
// to name it. LOCKSTEP_FAULT_ROUNDS=500 for a long run.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <random>
#include <regex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

long now_in_microseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Calls without an end: small and large, in place and not, one at a time and several.
void call_for_ever(const ProcessGroup& group, unsigned seed) {
  std::mt19937 random(seed);
  const auto bucket = group.backend()->allocateTensor(1'000'000, at::TensorOptions());
  bucket.zero_();
  while (true) {
    auto tensor =
        torch::ones({static_cast<std::int64_t>(random() % 3 == 0 ? random() % 500'000 : random() % 2000)});
    switch (random() % 5) {
      case 0:
        group.all_reduce(bucket);
        break;
      case 1:
        group.broadcast(tensor, static_cast<int>(random() % static_cast<unsigned>(group.size())));
        break;
      case 2: {
        auto first = group.all_reduce_async(bucket);
        group.all_reduce(tensor);
        first.wait();
        break;
      }
      case 3: {
        auto sent = group.send_async(tensor, (group.rank() + 1) % group.size());
        auto received = torch::empty_like(tensor);
        (void)group.recv(received, (group.rank() + group.size() - 1) % group.size());
        sent.wait();
        break;
      }
      default:
        group.all_reduce(tensor);
    }
  }
}

const testing::Scenario doomed("faults: doomed", [] {
  const Env env;
  const auto seed = static_cast<unsigned>(*env.get_int("TEST_SEED"));
  const auto victim = static_cast<int>(*env.get_int("TEST_VICTIM"));
  const int signal = static_cast<int>(*env.get_int("TEST_SIGNAL"));
  const auto context = init({.backend = "shm", .timeout = signal == SIGKILL ? 20s : 1s});
  context.barrier();
  std::thread executioner;
  if (context.rank() == victim) {
    executioner = std::thread([=] {
      std::this_thread::sleep_for(std::chrono::microseconds(std::mt19937(seed)() % 30'000));
      std::cerr << "at " << now_in_microseconds() << " us" << std::endl;
      ::raise(signal);
    });
    executioner.detach();
  }
  try {
    call_for_ever(context.group(), seed);
  } catch (const Error& error) {
    std::cerr << "at " << now_in_microseconds() << " us" << std::endl;
    throw;
  }
});

long time_in(const std::string& text) {
  std::smatch found;
  return std::regex_search(text, found, std::regex("at (\\d+) us")) ? std::stol(found[1]) : 0;
}

TEST(Faults, EverySurvivorNamesTheRankThatWasLost) {
  const char* wanted = std::getenv("LOCKSTEP_FAULT_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 16;
  std::mt19937 random(static_cast<unsigned>(rounds));
  std::vector<double> delays;
  for (int round = 0; round < rounds; ++round) {
    const int size = 2 + static_cast<int>(random() % 3);
    const auto victim = random() % static_cast<unsigned>(size);
    const bool kill = random() % 5 != 0;
    const auto results =
        testing::run_ranks(doomed, {.world_size = size,
                                    .env = {{"TEST_SEED", std::to_string(random() % 1'000'000)},
                                            {"TEST_VICTIM", std::to_string(victim)},
                                            {"TEST_SIGNAL", std::to_string(kill ? SIGKILL : SIGSTOP)}},
                                    .timeout = kill ? 30s : 5s});
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == victim) continue;
      const auto& result = results[rank];
      const auto name = "rank " + std::to_string(victim) + " (pid ";
      EXPECT_EQ(result.exit_code, 1) << "round " << round << ", rank " << rank << ": " << result.err;
      EXPECT_THAT(result.err, HasSubstr(name)) << "round " << round;
      EXPECT_THAT(result.err, HasSubstr(kill ? "is dead" : "it has been stopped by a signal"))
          << "round " << round;
      if (kill)
        delays.push_back(static_cast<double>(time_in(result.err) - time_in(results[victim].err)) / 1000);
    }
    if (HasFailure()) break;
  }
  if (delays.empty()) return;
  std::ranges::sort(delays);
  std::cout << rounds << " rounds; from the kill to the survivors' errors: median "
            << delays[delays.size() / 2] << " ms, longest " << delays.back() << " ms" << std::endl;
}

}  // namespace
}  // namespace lockstep
