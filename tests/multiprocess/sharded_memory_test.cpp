// SPDX-License-Identifier: BSD-3-Clause
// The memory of modules of fully_shard(): how many copies a host has, and that gathered ones do not grow.
#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/memory_report.h>
#include <lockstep/optim/fused.h>
#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "base/env.h"
#include "multiprocess/backends.h"
#include "support/private_memory.h"

namespace lockstep::testing::sharded_memory_test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kSide = 512, kLayerBytes = kSide * kSide * 4;

std::int64_t growth(const FullyShardOptions& options) {
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    torch::nn::Linear layer(torch::nn::LinearOptions(kSide, kSide).bias(false));
    fully_shard(layer, options);
    net->push_back(layer);
    net->push_back(torch::nn::Tanh());
  }
  optim::FusedAdamW optimizer(fully_shard(*net, options).parameters(), 1e-4);
  const auto x = torch::ones({4, kSide}).to(options.mp_policy.param_dtype.value_or(at::kFloat));
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      optimizer.zero_grad();
      net->forward(x).pow(2).mean().backward();
      optimizer.step();
    }
    return private_bytes();
  };
  const auto first = steps(3);
  return steps(12) - first;
}

const Scenario many_steps("fsdp many steps", [] {
  const auto context = init({.backend = "shm"});
  FullyShardOptions options{.reshard_after_forward = true, .share_memory = false};
  EXPECT_LT(growth(options), kLayerBytes);
  options.reshard_after_forward = 2;
  EXPECT_LT(growth(options), kLayerBytes);
  options.mp_policy.param_dtype = at::kBFloat16;
  EXPECT_LT(growth(options), kLayerBytes);
});
TEST(GatheredMemory, DoesNotGrowOverSteps) {
  // Without a reserve of the heap in which growth would not show.
  expect_all_passed(run_ranks(many_steps, {.world_size = 4, .env = {{"MALLOC_MMAP_THRESHOLD_", "65536"}}}));
}

// What the kernel has allocated for memory that this process shares with others.
std::int64_t shared_bytes() {
  namespace fs = std::filesystem;
  std::set<ino_t> seen;
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the iterator's own
    if (!fs::read_symlink(entry.path(), closed).string().starts_with("/memfd:")) continue;
    struct stat file {};
    if (::stat(entry.path().c_str(), &file) == 0 && seen.insert(file.st_ino).second)
      bytes += file.st_blocks * 512;
  }
  return bytes;
}

// A layer of 16 MiB.
constexpr std::int64_t kLargeSide = 2048, kLargeBytes = kLargeSide * kLargeSide * 4;

struct LargeLayer {
  explicit LargeLayer(const FullyShardOptions& options) : sharded(fully_shard(*layer, options)) {}
  MemoryBytes report() const { return memory_report(*layer, optimizer).host; }

  torch::nn::Linear layer{torch::nn::LinearOptions(kLargeSide, kLargeSide).bias(false)};
  FSDPModule sharded;
  torch::optim::SGD optimizer{sharded.parameters(), 1e-2};
};

// On NUMA nodes 0 and 1, and with all ranks on one.
const Scenario copies_of_nodes("fsdp copies of nodes", [] {
  const auto context = init({.backend = "shm"});
  const auto copies = Env().get_int("TEST_COPIES").value();
  const auto before = shared_bytes();
  const LargeLayer large({});
  context.barrier();
  EXPECT_GE(shared_bytes() - before, copies * kLargeBytes);
  EXPECT_LT(shared_bytes() - before, (copies + 1) * kLargeBytes);
  EXPECT_EQ(large.report().parameters, copies * kLargeBytes);
});
TEST(SharedMemory, HasACopyForEachNumaNode) {
  const auto run = [](const std::string& copies, const std::vector<int>& nodes) {
    expect_all_passed(run_ranks(
        copies_of_nodes, {.world_size = 4, .env = {{"TEST_COPIES", copies}}, .rank_env = numa_nodes(nodes)}));
  };
  run("1", {0, 0, 0, 0});
  run("2", {0, 0, 1, 1});
}

// On two hosts of two ranks. The layer of a rank alone would be private memory.
const Scenario gathered_on_hosts("fsdp gathered on hosts", [] {
  const auto context = init({.backend = "hierarchical"});
  for (const bool shares : {true, false}) {
    SCOPED_TRACE(shares);
    const LargeLayer large({.share_memory = shares});
    EXPECT_FALSE(large.sharded.shares_memory());
    const auto shared = shared_bytes();
    large.sharded.unshard();
    context.barrier();
    const auto gathered = shared_bytes() - shared;
    large.sharded.reshard();
    context.barrier();
    const auto own = private_bytes();  // now that the backend's threads have their stacks
    large.sharded.unshard();
    if (shares) {
      // The backend's thread drops the gathered rows after its call has ended.
      const Deadline deadline(20s);
      while (private_bytes() - own >= kLargeBytes / 2 && !deadline.expired()) std::this_thread::yield();
      EXPECT_LT(private_bytes() - own, kLargeBytes / 2);
      EXPECT_GE(gathered, kLargeBytes);
      EXPECT_LT(gathered, 2 * kLargeBytes);
    } else {
      EXPECT_GE(private_bytes() - own, kLargeBytes);
    }
    EXPECT_EQ(large.report().gathered, shares ? kLargeBytes : 2 * kLargeBytes);
    context.barrier();
    const auto after = shared_bytes();
    for (int round = 0; round < 10; ++round) {  // the memory is reused
      large.sharded.reshard();
      large.sharded.unshard();
    }
    EXPECT_LE(shared_bytes() - after, 2 * kLargeBytes);
    EXPECT_EQ(large.sharded.stats().groups.front().total.gathered_bytes, 12 * kLargeBytes);
  }
});
TEST(GatheredMemory, IsSharedByTheRanksOfAHost) {
  expect_all_passed(run_ranks(gathered_on_hosts, {.world_size = 4,
                                                  .env = {{"MALLOC_MMAP_THRESHOLD_", "65536"}},
                                                  .rank_env = hosts_of("hierarchical_2_2", 4)}));
}

}  // namespace
}  // namespace lockstep::testing::sharded_memory_test
