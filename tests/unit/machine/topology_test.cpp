// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine/host.h"
#include "unit/machine/file_tree.h"

namespace lockstep::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Topology : public ::testing::Test {
 protected:
  void write_cpu(int cpu, int package, const std::string& threads) const {
    const auto folder = fmt::format("devices/system/cpu/cpu{}/topology/", cpu);
    tree_.write(folder + "physical_package_id", std::to_string(package));
    tree_.write(folder + "thread_siblings_list", threads);
  }
  // Two packages of two cores with two threads each, numbered as the kernel does.
  void write_two_packages() const {
    for (int cpu = 0; cpu < 8; ++cpu) write_cpu(cpu, cpu % 4 / 2, fmt::format("{},{}", cpu % 4, cpu % 4 + 4));
    tree_.write("devices/system/cpu/online", "0-7");
    tree_.write("devices/system/node/online", "0-1");
    tree_.write("devices/system/node/node0/cpulist", "0-1,4-5");
    tree_.write("devices/system/node/node1/cpulist", "2-3,6-7");
  }
  std::vector<Core> read(const std::vector<int>& allowed) const { return read_cores(tree_.root(), allowed); }

  testing::FileTree tree_;
};

TEST(CpuList, UsesTheKernelsNotation) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list("4,2\n"), ElementsAre(2, 4));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("none"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("3-"), IsEmpty());
}

TEST_F(Topology, KnowsPackagesThreadsAndNodes) {
  write_two_packages();
  EXPECT_THAT(read({0, 1, 2, 3, 4, 5, 6, 7}),
              ElementsAre(Core{0, 0, 0, 0}, Core{1, 1, 0, 0}, Core{2, 2, 1, 1}, Core{3, 3, 1, 1},
                          Core{4, 0, 0, 0}, Core{5, 1, 0, 0}, Core{6, 2, 1, 1}, Core{7, 3, 1, 1}));
}

TEST_F(Topology, UsesOnlineCpusOfTheMask) {
  write_two_packages();
  EXPECT_THAT(read({6, 1}), ElementsAre(Core{1, 1, 0, 0}, Core{6, 2, 1, 1}));
  tree_.write("devices/system/cpu/online", "0-5");
  EXPECT_THAT(read({5, 6, 7}), ElementsAre(Core{5, 1, 0, 0}));
}

TEST_F(Topology, HasDefaultsForMissingFiles) {
  EXPECT_THAT(read({2, 0}), ElementsAre(Core{0, 0, 0, 0}, Core{2, 2, 0, 0}));
  tree_.write("devices/system/cpu/cpu2/topology/physical_package_id", "-1");
  EXPECT_THAT(read({2}), ElementsAre(Core{2, 2, 0, 0}));
}

TEST(ThisMachine, HasTheCoresOfTheMask) {
  std::vector<int> cpus;
  for (const auto& core : read_cores()) cpus.push_back(core.cpu);
  EXPECT_EQ(cpus, affinity_cpus());
}

}  // namespace
}  // namespace lockstep::machine
