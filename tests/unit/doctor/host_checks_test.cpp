// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/doctor/findings.h"

namespace lockstep::doctor {
namespace {

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

TEST(CheckCores, WarnsBelowOneCore) {
  EXPECT_THAT(check_cores({.online = 8, .usable = 8}), is_ok());
  EXPECT_THAT(check_cores({.online = 8, .quota = 2.5, .usable = 3}), is_ok());
  EXPECT_THAT(check_cores({.online = 8, .quota = 0.5, .usable = 1}), is_warning("0.50 of a core"));
}

TEST(CheckMemory, ChecksTheHostAndTheCgroup) {
  machine::Memory memory{.total = 64 * kGibibyte, .available = 8 * kGibibyte};
  EXPECT_THAT(check_memory(memory), is_ok());
  memory.cgroup_limit = 2 * kGibibyte;
  memory.cgroup_left = kGibibyte / 2;
  EXPECT_THAT(check_memory(memory), is_warning("512.0 MiB of 2.0 GiB available under the cgroup's limit"));
  EXPECT_THAT(check_memory({.total = kGibibyte, .available = 1024}), is_warning("1.0 KiB of 1.0 GiB"));
}

TEST(CheckSharedMemory, NeedsMemfd) {
  EXPECT_THAT(check_memfd({}), is_ok());
  EXPECT_THAT(check_memfd({.memfd_error = "memfd_create: Operation not permitted"}),
              is_problem("not permitted"));
}

TEST(CheckSharedMemory, NeedsSpaceInDevShmOnlyForGpus) {
  const SharedMemoryFacts dockers{.dev_shm_total = 64 << 20, .dev_shm_free = 64 << 20};
  EXPECT_THAT(check_dev_shm(dockers, false), is_ok());
  EXPECT_THAT(check_dev_shm(dockers, true), is_warning("64.0 MiB of 64.0 MiB free"));
  EXPECT_THAT(check_dev_shm({}, true), is_warning("does not exist"));
  EXPECT_THAT(check_dev_shm({.dev_shm_total = kGibibyte, .dev_shm_free = kGibibyte}, true), is_ok());
}

TEST(CheckClock, HasThreeResults) {
  EXPECT_THAT(check_clock({.synchronized = true}), is_ok());
  EXPECT_THAT(check_clock({.synchronized = false}), is_warning("not synchronized"));
  EXPECT_THAT(check_clock({.error = "Operation not permitted"}), is_warning("Operation not permitted"));
}

TEST(CheckLimits, OpenFiles) {
  EXPECT_THAT(check_open_files({}), is_ok());
  EXPECT_THAT(check_open_files({.open_files = 1024}), is_ok());
  EXPECT_THAT(check_open_files({.open_files = 1023}), is_warning("limit 1023"));
  EXPECT_THAT(check_open_files({.open_files = 255}), is_problem("limit 255"));
}

TEST(CheckLimits, ProcessesUseTheTighterOfTwoLimits) {
  EXPECT_THAT(check_processes({}), is_ok());
  EXPECT_THAT(check_processes({.processes = 500, .pids = 100}), is_warning("100 of the cgroup (pids.max)"));
  EXPECT_THAT(check_processes({.processes = 50, .pids = 100}), is_problem("limit 50,"));
  EXPECT_THAT(check_processes({.pids = 5000}), is_ok());
}

TEST(CheckLimits, LockedMemoryMattersForRdma) {
  EXPECT_THAT(check_locked_memory({.locked_memory = 65536}), is_ok());
  EXPECT_THAT(check_locked_memory({.has_rdma = true}), is_ok());
  EXPECT_THAT(check_locked_memory({.locked_memory = 65536, .has_rdma = true}), is_warning("64.0 KiB"));
}

TEST(CheckCoreFiles, ReportsTheirDestination) {
  EXPECT_THAT(check_core_files({.core_size = 0, .core_pattern = "core"}), is_ok());
  EXPECT_THAT(check_core_files({.core_pattern = "/tmp/core.%p"}), is_ok());
  EXPECT_THAT(check_core_files({.core_pattern = "|/bin/sh %p"}), is_ok());
  EXPECT_THAT(check_core_files({.core_pattern = "|/no/such/program %p"}), is_warning("/no/such/program"));
}

}  // namespace
}  // namespace lockstep::doctor
