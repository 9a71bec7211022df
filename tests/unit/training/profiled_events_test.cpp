// SPDX-License-Identifier: BSD-3-Clause
// What the Profiler makes of the events of its ranks.
#include "training/profiled_events.h"

#include <chrono>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/training/profile.h>

#include "comm/profiler_event.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = training::ProfiledEvent::Kind;

training::ProfiledEvent event(const std::string& name, Kind kind, int thread, int begin, int end, unsigned id,
                              unsigned started_by = 0) {
  return {name, kind,      0, thread, std::chrono::microseconds(begin), std::chrono::microseconds(end),
          id,   started_by};
}

TEST(OperatorTimes, AreThoseOfThreadsStreamsAndAsynchronousEvents) {
  const std::vector events{
      event("step", Kind::nested, 1, 0, 100, 1),         event("mm", Kind::nested, 1, 10, 40, 2),
      event("copy", Kind::nested, 1, 20, 25, 3),         event("mm", Kind::nested, 1, 40, 50, 4),
      event("mm", Kind::nested, 2, 45, 95, 5),           event("reduce", Kind::asynchronous, 1, 30, 90, 6),
      event("bucket", Kind::asynchronous, 1, 35, 95, 7), event("kernel", Kind::device, 7, 60, 80, 8, 4)};
  const auto text = training::to_text(training::operator_times(events));
  const auto sums = training::summed({text, text});
  ASSERT_EQ(sums.size(), 5U);
  const auto expect = [&](std::size_t row, const std::string& key, int count, double self, double total) {
    EXPECT_EQ(sums[row].key, key);
    EXPECT_EQ(sums[row].count, count);
    EXPECT_DOUBLE_EQ(sums[row].self_cpu_time_total, self);
    EXPECT_DOUBLE_EQ(sums[row].cpu_time_total, total);
    EXPECT_DOUBLE_EQ(sums[row].self_device_time_total, key == "mm" ? 40 : 0);
  };
  expect(0, "mm", 6, 170, 180);
  expect(1, "step", 2, 120, 200);
  expect(2, "copy", 2, 10, 10);
  expect(3, "bucket", 2, 0, 120);
  expect(4, "reduce", 2, 0, 120);
  EXPECT_THAT(training::table_of(sums, 1), AllOf(HasSubstr("56.67%"), HasSubstr("Self device"),
                                                 HasSubstr("40.000us"), Not(HasSubstr("step"))));

  const auto trace = training::rank_trace(events);
  EXPECT_THAT(trace.tracks, ::testing::ElementsAre(HasSubstr("thread 1"), HasSubstr("thread 2"),
                                                   "communication", "communication 2", "device 0 stream 7"));
}

// The first asynchronous event of a marked call is that of its backend; others are within it.
TEST(CallMarks, AreTextsOfTheEventsWithinThem) {
  const std::string mark(comm::kCallMark);
  const auto events = training::with_calls(
      {event("bucket", Kind::asynchronous, 1, 0, 90, 1), event(mark + "outer", Kind::nested, 1, 5, 50, 2),
       event("hierarchical", Kind::asynchronous, 1, 5, 80, 3),
       event(mark + "inner", Kind::nested, 1, 10, 20, 4), event("shm", Kind::asynchronous, 1, 12, 60, 5),
       event("elsewhere", Kind::asynchronous, 2, 15, 60, 6), event("gloo", Kind::asynchronous, 1, 30, 60, 7),
       event("op", Kind::nested, 1, 40, 45, 8), event("after", Kind::asynchronous, 1, 55, 60, 9),
       event(mark + "barrier #4 of group g", Kind::nested, 1, 70, 75, 10),
       event("in another thread", Kind::asynchronous, 3, 72, 80, 11)});
  std::map<std::string, std::string> calls;
  for (const auto& event : events) calls[event.name] = event.call;
  EXPECT_EQ(calls, (std::map<std::string, std::string>{{"bucket", ""},
                                                       {"hierarchical", "outer"},
                                                       {"shm", "inner"},
                                                       {"elsewhere", ""},
                                                       {"gloo", ""},
                                                       {"op", ""},
                                                       {"after", ""},
                                                       {"lockstep::barrier", "barrier #4 of group g"},
                                                       {"in another thread", ""}}));
}

}  // namespace
}  // namespace lockstep
