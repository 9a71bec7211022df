// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "machine/host.h"

namespace lockstep::machine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Shares = std::vector<std::vector<int>>;

// CPUs are numbered as Linux does: the first threads of all cores, node by node, then the second ones.
struct Shape {
  int packages = 1;
  int nodes_per_package = 1;
  int cores_per_node = 1;
  int threads_per_core = 1;
};

std::vector<Core> machine_of(const Shape& shape) {
  std::vector<Core> cores;
  const int physical = shape.packages * shape.nodes_per_package * shape.cores_per_node;
  for (int cpu = 0; cpu < physical * shape.threads_per_core; ++cpu) {
    const int core = cpu % physical;
    const int node = core / shape.cores_per_node;
    cores.push_back({.cpu = cpu, .core = core, .package = node / shape.nodes_per_package, .numa_node = node});
  }
  return cores;
}

std::set<int> nodes_of(const std::vector<Core>& cores, const std::vector<int>& cpus) {
  std::set<int> nodes;
  for (const int cpu : cpus) nodes.insert(std::ranges::find(cores, cpu, &Core::cpu)->numa_node);
  return nodes;
}

TEST(Binding, NoneBindsNothing) {
  EXPECT_THAT(assign_cores(machine_of({.cores_per_node = 4}), 3, Binding::none),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST(Binding, CompactKeepsNeighboursTogether) {
  const auto cores = machine_of({.packages = 2, .cores_per_node = 4, .threads_per_core = 2});
  EXPECT_EQ(assign_cores(cores, 4, Binding::compact),
            (Shares{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}));
}

TEST(Binding, SpreadAlternatesBetweenPackages) {
  const auto cores = machine_of({.packages = 2, .cores_per_node = 4, .threads_per_core = 2});
  EXPECT_EQ(assign_cores(cores, 4, Binding::spread),
            (Shares{{0, 1, 8, 9}, {4, 5, 12, 13}, {2, 3, 10, 11}, {6, 7, 14, 15}}));
}

TEST(Binding, SpreadGoesToTheOtherPackageBeforeTheNextNode) {
  const auto cores = machine_of({.packages = 2, .nodes_per_package = 2, .cores_per_node = 2});
  EXPECT_EQ(assign_cores(cores, 5, Binding::spread), (Shares{{0}, {4, 5}, {2, 3}, {6, 7}, {1}}));
  EXPECT_EQ(assign_cores(cores, 2, Binding::spread), (Shares{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(Binding, SpreadStaysWithinANodeEvenWhenRanksGetUnequalShares) {
  const auto cores = machine_of({.packages = 2, .cores_per_node = 4});
  EXPECT_EQ(assign_cores(cores, 3, Binding::spread), (Shares{{0, 1}, {4, 5, 6, 7}, {2, 3}}));
  EXPECT_EQ(assign_cores(cores, 3, Binding::compact), (Shares{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
}

TEST(Binding, SpreadFollowsTheNumberOfCores) {
  auto cores = machine_of({.packages = 2, .cores_per_node = 4});
  std::erase_if(cores, [](const Core& core) { return core.cpu > 4; });
  EXPECT_EQ(assign_cores(cores, 5, Binding::spread), (Shares{{0}, {1}, {2}, {3}, {4}}));
}

TEST(Binding, OneRankHasAll) {
  const auto cores = machine_of({.packages = 2, .cores_per_node = 2});
  for (const auto binding : {Binding::compact, Binding::spread}) {
    EXPECT_EQ(assign_cores(cores, 1, binding), (Shares{{0, 1, 2, 3}}));
  }
}

TEST(Binding, ThreadsOfACoreAreSharedOnlyWhenCoresRunOut) {
  const auto cores = machine_of({.cores_per_node = 2, .threads_per_core = 2});
  EXPECT_EQ(assign_cores(cores, 2, Binding::compact), (Shares{{0, 2}, {1, 3}}));
  EXPECT_EQ(assign_cores(cores, 3, Binding::compact), (Shares{{0}, {2}, {1, 3}}));
  EXPECT_EQ(assign_cores(cores, 4, Binding::spread), (Shares{{0}, {2}, {1}, {3}}));
}

TEST(Binding, MoreRanksThanCpusTakeTurns) {
  const auto cores = machine_of({.packages = 2, .cores_per_node = 1});
  for (const auto binding : {Binding::compact, Binding::spread}) {
    EXPECT_EQ(assign_cores(cores, 5, binding), (Shares{{0}, {1}, {0}, {1}, {0}}));
  }
}

TEST(Binding, RejectsZeroRanksAndAcceptsZeroCpus) {
  EXPECT_THROW(assign_cores(machine_of({}), 0, Binding::none), ArgumentError);
  EXPECT_THAT(assign_cores({}, 2, Binding::compact), ElementsAre(IsEmpty(), IsEmpty()));
}

// Every shape and number of ranks: each CPU is used once, nobody goes without, nobody straddles needlessly.
TEST(Binding, SharesAllCoresOnce) {
  for (const Shape shape : {Shape{1, 1, 6, 2}, Shape{2, 1, 5, 2}, Shape{2, 4, 3, 1}, Shape{3, 1, 4, 2}}) {
    const auto cores = machine_of(shape);
    for (int ranks = 1; ranks <= static_cast<int>(cores.size()); ++ranks) {
      for (const auto binding : {Binding::compact, Binding::spread}) {
        std::map<int, int> uses;
        for (const auto& share : assign_cores(cores, ranks, binding)) {
          EXPECT_FALSE(share.empty());
          if (binding == Binding::spread && ranks >= shape.packages * shape.nodes_per_package) {
            EXPECT_THAT(nodes_of(cores, share), SizeIs(1)) << ranks;
          }
          for (const int cpu : share) ++uses[cpu];
        }
        EXPECT_THAT(uses, SizeIs(cores.size())) << ranks;
        EXPECT_THAT(uses, Each(::testing::Field(&std::pair<const int, int>::second, 1))) << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::machine
