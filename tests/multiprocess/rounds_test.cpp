// SPDX-License-Identifier: BSD-3-Clause
// A process that goes through many groups, half of which fail, keeps nothing of them.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/threads.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

struct Holdings {
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t threads = testing::living_threads();
  std::size_t shared_mappings = 0;

  Holdings() {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line))
      shared_mappings += line.find("memfd:lockstep") != std::string::npos ? 1 : 0;
  }
  bool operator==(const Holdings&) const = default;
};

constexpr int kRounds = 200;

const testing::Scenario rounds("rounds", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto run_round = [&](int round) {
    const auto group = context.new_group({0, 1});
    {
      const auto bucket = group.backend()->allocateTensor(100'000, at::TensorOptions());
      bucket.fill_(context.rank() + 1);
      group.all_reduce(bucket);
      EXPECT_EQ(bucket[99'999].item<float>(), 3);
    }
    if (round % 2 == 1) {
      EXPECT_THROW(group.all_reduce(torch::ones({context.rank() + 1})), DesyncError);
    }
    group.close();
  };
  for (int round = 0; round < 4; ++round) run_round(round);
  const Holdings before;
  for (int round = 4; round < kRounds; ++round) run_round(round);
  const Holdings after;
  // Not EQ: the store's server may still hold a connection of init() at `before`.
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.shared_mappings, before.shared_mappings);
});
TEST(Rounds, LeaveNothingBehind) { testing::expect_all_passed(testing::run_ranks(rounds)); }

}  // namespace
}  // namespace lockstep
