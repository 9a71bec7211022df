// SPDX-License-Identifier: BSD-3-Clause

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/host.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A made-up process and the groups that it is in.
class CgroupTree : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name, std::ios::app) << text << '\n';
  }
  void is_member(const std::string& line) const { write("proc/cgroup", line); }
  // `folder` shows the groups from `root` on.
  void mount(const std::string& folder, const std::string& type, const std::string& options,
             const std::string& root = "/") const {
    write("proc/mountinfo", fmt::format("32 31 0:29 {} {} rw,relatime shared:7 - {} {} {}", root,
                                        folder_.file(folder), type, type, options));
  }
  Cgroups groups() const { return Cgroups(folder_.path() / "proc"); }

  testing::TempFolder folder_;
};

TEST_F(CgroupTree, WithoutAnyThereIsNoLimit) {
  EXPECT_EQ(groups().cpu_quota(), std::nullopt);
  EXPECT_EQ(groups().memory_limit(), std::nullopt);
  EXPECT_EQ(groups().memory_left(), std::nullopt);
  EXPECT_EQ(groups().pids_limit(), std::nullopt);
}

TEST_F(CgroupTree, Version2TakesTheTightestOfAllAncestors) {
  is_member("0::/user.slice/job/step");
  mount("v2", "cgroup2", "rw,nsdelegate");
  write("v2/user.slice/job/step/cpu.max", "max 100000");
  write("v2/user.slice/job/cpu.max", "150000 100000");
  write("v2/user.slice/cpu.max", "400000 100000");
  write("v2/user.slice/job/step/memory.max", "3000");
  write("v2/user.slice/job/step/memory.current", "1000");
  write("v2/user.slice/job/memory.max", "4000");
  write("v2/user.slice/job/memory.current", "3500");
  write("v2/user.slice/pids.max", "77");
  EXPECT_EQ(groups().cpu_quota(), 1.5);
  EXPECT_EQ(groups().memory_limit(), 3000U);
  EXPECT_EQ(groups().memory_left(), 500U);
  EXPECT_EQ(groups().pids_limit(), 77U);
}

TEST_F(CgroupTree, Version2InAContainerThatSeesItsOwnGroupAsTheRoot) {
  is_member("0::/");
  mount("v2", "cgroup2", "rw");
  write("v2/cpu.max", "50000 100000");
  EXPECT_EQ(groups().cpu_quota(), 0.5);
}

TEST_F(CgroupTree, Version1HasAFolderForEachController) {
  is_member("4:memory:/job");
  is_member("3:cpu,cpuacct:/job");
  mount("cpu", "cgroup", "rw,cpu,cpuacct");
  mount("memory", "cgroup", "rw,memory");
  write("cpu/job/cpu.cfs_quota_us", "-1");
  write("cpu/job/cpu.cfs_period_us", "100000");
  write("cpu/cpu.cfs_quota_us", "250000");
  write("cpu/cpu.cfs_period_us", "100000");
  write("memory/job/memory.limit_in_bytes", "5000");
  write("memory/job/memory.usage_in_bytes", "6000");
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(groups().cpu_quota(), 2.5);
  EXPECT_EQ(groups().memory_limit(), 5000U);
  EXPECT_EQ(groups().memory_left(), 0U);
}

TEST_F(CgroupTree, Version1InAContainerThatSeesTheHostsPaths) {
  is_member("3:cpu,cpuacct:/docker/abc/inner");
  mount("cpu", "cgroup", "rw,cpu,cpuacct", "/docker/abc");
  write("cpu/inner/cpu.cfs_quota_us", "300000");
  write("cpu/inner/cpu.cfs_period_us", "100000");
  EXPECT_EQ(groups().cpu_quota(), 3);
}

TEST_F(CgroupTree, BothVersionsAtOnce) {
  is_member("3:cpu:/job");
  is_member("0::/other");
  mount("cpu", "cgroup", "rw,cpu");
  mount("v2", "cgroup2", "rw");
  write("cpu/job/cpu.cfs_quota_us", "200000");
  write("cpu/job/cpu.cfs_period_us", "100000");
  write("v2/other/pids.max", "max");
  EXPECT_EQ(groups().cpu_quota(), 2);
  EXPECT_EQ(groups().pids_limit(), std::nullopt);
}

TEST_F(CgroupTree, MountPointsWithSpaces) {
  is_member("0::/");
  write("a place/cpu.max", "100000 100000");
  mount("a\\040place", "cgroup2", "rw");
  EXPECT_EQ(groups().cpu_quota(), 1);
}

TEST_F(CgroupTree, AGroupThatTheMountDoesNotShow) {
  is_member("0::/elsewhere/job");
  mount("v2", "cgroup2", "rw", "/docker/abc");
  write("v2/cpu.max", "700000 100000");
  EXPECT_EQ(groups().cpu_quota(), 7);
}

TEST(UsableCores, AreAtLeastOneAndNoMoreThanTheMask) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(affinity_cpus().size()));
}

}  // namespace
}  // namespace lockstep
