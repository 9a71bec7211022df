// SPDX-License-Identifier: BSD-3-Clause
#include "machine/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/machine/file_tree.h"

namespace lockstep::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CpuListText, UsesTheKernelsNotation) {
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(HostMemory, IsReadInBytes) {
  const testing::FileTree tree;
  tree.write("meminfo", "MemTotal:       1000 kB\nMemFree:   1 kB\nMemAvailable:    600 kB");
  const auto memory = read_memory(tree.root(), tree.root() / "self");
  EXPECT_EQ(memory.total, 1000U * 1024);
  EXPECT_EQ(memory.available, 600U * 1024);
  EXPECT_EQ(memory.cgroup_limit, std::nullopt);
}

TEST(HostMemory, KnowsTheLimitOfTheCgroup) {
  const testing::FileTree tree;
  tree.write("meminfo", "MemTotal: 1000 kB");
  tree.write("self/cgroup", "0::/");
  tree.write("self/mountinfo", "1 2 0:3 / " + tree.root().string() + "/groups rw - cgroup2 cgroup2 rw");
  tree.write("groups/memory.max", "5000");
  tree.write("groups/memory.current", "2000");
  const auto memory = read_memory(tree.root(), tree.root() / "self");
  EXPECT_EQ(memory.cgroup_limit, 5000U);
  EXPECT_EQ(memory.cgroup_left, 3000U);
}

TEST(NumaNodes, HaveCpusAndMemory) {
  const testing::FileTree tree;
  EXPECT_THAT(read_numa_nodes(tree.root()), IsEmpty());
  tree.write("devices/system/node/online", "0,2");
  tree.write("devices/system/node/node2/cpulist", "4-5");
  tree.write("devices/system/node/node2/meminfo", "Node 2 MemTotal: 64 kB\nNode 2 MemFree: 16 kB");
  const auto nodes = read_numa_nodes(tree.root());
  ASSERT_THAT(nodes, SizeIs(2));
  EXPECT_EQ(nodes[1].node, 2);
  EXPECT_THAT(nodes[1].cpus, ElementsAre(4, 5));
  EXPECT_EQ(nodes[1].total, 64U * 1024);
  EXPECT_EQ(nodes[1].free, 16U * 1024);
}

TEST(HostProcessor, HasAModelAndALoad) {
  const testing::FileTree tree;
  tree.write("cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n");
  tree.write("loadavg", "1.25 0.5 0.1 1/2 3");
  tree.write("devices/system/cpu/online", "0-1023");
  const auto processor = read_processor(tree.root(), tree.root(), tree.root() / "self");
  EXPECT_EQ(processor.model, "Some CPU @ 2 GHz");
  EXPECT_EQ(processor.load, 1.25);
  EXPECT_EQ(processor.online, 1024);
  EXPECT_EQ(processor.quota, std::nullopt);
  EXPECT_GE(processor.usable, 1);
}

}  // namespace
}  // namespace lockstep::machine
