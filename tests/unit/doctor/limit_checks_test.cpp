// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/host_checks.h"
#include "unit/doctor/findings.h"

namespace lockstep::doctor {
namespace {

// The only finding that is not ok.
Finding bad_one(const ProcessLimits& limits) {
  Findings bad;
  for (const auto& finding : check_process_limits(limits)) {
    if (finding.severity != Severity::ok) bad.push_back(finding);
  }
  EXPECT_EQ(bad.size(), 1U);
  return bad.empty() ? Finding{} : bad.front();
}

TEST(CheckProcessLimits, NamesEachLimit) {
  EXPECT_THAT(check_process_limits({.temporary_folder = "/tmp"}), ::testing::Each(is_ok()));
  EXPECT_THAT(bad_one({.file_size = 1 << 20, .temporary_folder = "/tmp"}), is_warning("limit 1.0 MiB"));
  EXPECT_THAT(bad_one({.address_space = 1 << 20,
                       .address_shortage = LimitShortage{"too little", "raise it"},
                       .temporary_folder = "/tmp"}),
              is_problem("too little"));
  EXPECT_THAT(
      bad_one({.address_space = std::uint64_t{4} << 30, .shareable = 1 << 20, .temporary_folder = "/tmp"}),
      is_warning("share 1.0 MiB each"));
  EXPECT_THAT(bad_one({.cpu_time = 60, .temporary_folder = "/tmp"}), is_warning("after 60 s"));
  EXPECT_THAT(bad_one({.stack = LimitShortage{"too small", "raise it"}, .temporary_folder = "/tmp"}),
              is_problem("too small"));
  EXPECT_THAT(bad_one({.reads_memory = false, .temporary_folder = "/tmp"}), is_warning("process_vm_readv"));
  EXPECT_THAT(bad_one({.has_proc = false, .temporary_folder = "/tmp"}), is_warning("not mounted"));
  EXPECT_THAT(bad_one({.temporary_folder = "/x", .temporary_error = "absent"}), is_warning("/x: absent"));
}

}  // namespace
}  // namespace lockstep::doctor
