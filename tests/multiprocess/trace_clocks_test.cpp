// SPDX-License-Identifier: BSD-3-Clause
// The clocks of a trace of several ranks, also on several hosts.
#include <chrono>
#include <sched.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/rendezvous/init.h>

#include "multiprocess/read_trace.h"
#include "support/ranks.h"
#include "support/temp_folder.h"
#include "trace/chrome_trace.h"
#include "trace/clock_alignment.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;

nanoseconds steady_time() { return std::chrono::steady_clock::now().time_since_epoch(); }

const Scenario common_clock("a trace with the times of all ranks on one clock", [] {
  const auto context = init({.backend = "shm"});
  const nanoseconds base(
      std::stoll(context.group().broadcast_object(std::to_string(steady_time().count()), 0)));
  const auto begin = base - std::chrono::milliseconds(5) * context.rank();
  const auto file = profile_file("clock.json");
  tracing::write_chrome_trace(file, {{"track"}, {{0, "a \"slice\"", begin, begin + nanoseconds(1500)}}},
                              steady_time, context.group(), std::source_location::current());
  if (!context.is_main_process()) return;
  const ReadTrace trace(file);
  EXPECT_DOUBLE_EQ(trace.named(0, "a \"slice\"").at(0).begin, 5000);
  EXPECT_DOUBLE_EQ(trace.named(1, "a \"slice\"").at(0).begin, 0);
  EXPECT_DOUBLE_EQ(trace.named(1, "a \"slice\"").at(0).end, 1.5);
});

nanoseconds later_time() { return steady_time() + std::chrono::hours(1); }

// Rank 2 of 3 has a network of its own, as another host, and a clock that is an hour ahead.
const Scenario two_clocks("a trace of two hosts", [] {
  const auto context = init({.backend = "shm"});
  const bool is_other = context.rank() == 2;
  if (is_other) {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
  }
  context.group().barrier();
  auto* const now = is_other ? later_time : steady_time;
  const auto begin = now();
  context.group().barrier();
  const auto file = profile_file("hosts.json");
  const std::string call = "barrier #2 of group \"default\"";
  tracing::write_chrome_trace(file, {{"track"}, {{0, "barrier", begin, now(), call}}}, now, context.group(),
                              std::source_location::current());
  if (!context.is_main_process()) return;
  const ReadTrace trace(file);
  offer_trace(file);
  expect_flows(trace, 3);
  ASSERT_EQ(trace.flows.size(), 1U);
  ASSERT_EQ(trace.clocks.size(), 2U);
  EXPECT_EQ(trace.clocks[0].at("error_us"), 0);
  EXPECT_EQ(trace.clocks[1].at("ranks"), json::parse("[2]"));
  const double error = trace.clocks[1].at("error_us");
  EXPECT_GT(error, 0);
  // All are in the barrier at one moment.
  const auto here = trace.named(0, "barrier").at(0);
  const auto there = trace.named(2, "barrier").at(0);
  EXPECT_LT(here.begin, there.end + error);
  EXPECT_LT(there.begin, here.end + error);
});

void expect_passes(const Scenario& scenario, int ranks) {
  const TempFolder folder;
  expect_all_passed(
      run_ranks(scenario, {.world_size = ranks, .env = {{"PROFILE_FOLDER", folder.path().string()}}}));
}

TEST(TraceClocks, AreOneOfAllRanks) { expect_passes(common_clock, 2); }
TEST(TraceClocks, OfHostsAreAligned) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes networks";
  expect_passes(two_clocks, 3);
}

TEST(HostClocks, AreBoundedByBarriers) {
  using std::chrono::microseconds;
  // Ranks 0 and 1 are on the first host; rank 2's clock shows 1000 us more. In the second barrier all enter
  // within 10 us, and leave within 10 us of the last.
  std::vector<tracing::HostClock> clocks{{.name = "a", .ranks = {0, 1}}, {.name = "b", .ranks = {2}}};
  estimate_offsets(
      {{.entered = {microseconds(0), microseconds(200)}, .left = {microseconds(60), microseconds(225)}},
       {.entered = {microseconds(9), microseconds(205)}, .left = {microseconds(90), microseconds(220)}},
       {.entered = {microseconds(1050), microseconds(1210)},
        .left = {microseconds(1080), microseconds(1218)}}},
      clocks);
  EXPECT_EQ(clocks[0].offset, microseconds(0));
  EXPECT_EQ(clocks[0].error, microseconds(0));
  // 1210 - 220 <= offset <= 1218 - 205
  EXPECT_EQ(clocks[1].offset, nanoseconds(1'001'500));
  EXPECT_EQ(clocks[1].error, nanoseconds(11'500));
}

}  // namespace
}  // namespace lockstep::testing
