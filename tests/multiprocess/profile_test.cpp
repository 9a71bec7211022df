// SPDX-License-Identifier: BSD-3-Clause
// Profiler and the traces of several ranks, beside torch.profiler.
#include <cstdlib>
#include <fstream>
#include <map>
#include <sched.h>
#include <set>
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <lockstep/lockstep.h>
#include <lockstep/training/profile.h>

#include "comm/profiler_event.h"
#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"
#include "trace/chrome_trace.h"
#include "trace/clock_alignment.h"
#include "training/profiled_events.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using Kind = training::ProfiledEvent::Kind;

constexpr int kActive = 3;

torch::nn::Sequential make_profiled_net() {
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
}

template <typename Net>
void train_profiled(Net& net, Profiler& profiler, int steps) {
  const auto inputs = torch::ones({8, 16});
  const auto targets = torch::zeros({8}, torch::kLong);
  for (int step = 0; step < steps; ++step) {
    net->zero_grad();
    torch::nn::functional::cross_entropy(net->forward(inputs), targets).backward();
    profiler.step();
  }
}

ProfilerOptions quiet(const std::string& path) {
  return {.path = path, .active = kActive, .on_trace_ready = [](const Profiler&) {}};
}

struct Slice {
  std::string name, track;
  double begin, end;
  std::string call = {};
};

struct FlowPoint {
  std::string phase;
  int rank;
  std::pair<int, int> track;
  double time;
};

struct ReadTrace {
  explicit ReadTrace(const std::string& file) {
    std::ifstream stream(file);
    const auto file_contents = json::parse(stream);
    clocks = file_contents.at("otherData").at("clocks");
    const auto& events = file_contents.at("traceEvents");
    std::map<std::pair<int, int>, std::string> tracks;
    for (const auto& event : events) {
      if (event.at("name") == "thread_name")
        tracks[{event.at("pid"), event.at("tid")}] = event["args"]["name"];
      if (event.at("name") == "process_name") processes.insert(event["args"]["name"]);
    }
    for (const auto& event : events) {
      if (event.at("ph") == "M") continue;
      const double begin = event.at("ts");
      const int rank = event.at("pid");
      const std::pair<int, int> track{rank, event.at("tid")};
      if (event.at("ph") == "X") {
        const auto call = event.contains("args") ? std::string(event["args"].at("call")) : "";
        slices[rank].push_back(
            {event.at("name"), tracks.at(track), begin, begin + double(event["dur"]), call});
        if (!call.empty()) calls[{track, begin}] = call;
      } else {
        EXPECT_EQ(event.at("bp"), "e");
        flows[event.at("id")].push_back({event.at("ph"), rank, track, begin});
      }
    }
  }

  std::vector<Slice> named(int rank, const std::string& prefix) const {
    std::vector<Slice> found;
    for (const auto& slice : slices.at(rank))
      if (slice.name.starts_with(prefix)) found.push_back(slice);
    return found;
  }

  std::set<std::string> processes;
  json clocks;
  std::map<std::pair<std::pair<int, int>, double>, std::string> calls;  // by track and begin
  std::map<int, std::vector<FlowPoint>> flows;
  std::map<int, std::vector<Slice>> slices;
};

std::map<std::string, std::int64_t> counts_of(const std::vector<OperatorTimes>& operators) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& times : operators) counts[times.key] = times.count;
  return counts;
}

std::string profile_file(const std::string& name) { return std::getenv("PROFILE_FOLDER") + ("/" + name); }

// All that begins on a track while another is open also ends within it.
void expect_nested(const std::vector<Slice>& slices) {
  std::map<std::string, std::vector<Slice>> open;
  for (const auto& slice : slices) {
    auto& stack = open[slice.track];
    while (!stack.empty() && stack.back().end <= slice.begin + 0.002) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(slice.end, stack.back().end + 0.002) << slice.name << " in " << stack.back().name;
    }
    stack.push_back(slice);
  }
}

void expect_training_in(const ReadTrace& trace, int rank, std::size_t buckets) {
  const auto steps = trace.named(rank, "ProfilerStep#");
  ASSERT_EQ(steps.size(), kActive);
  EXPECT_EQ(steps.front().name, "ProfilerStep#2");
  EXPECT_EQ(trace.named(rank, "aten::addmm").size(), 2 * kActive);
  EXPECT_EQ(trace.named(rank, "AddmmBackward0").size(), 2 * kActive);
  EXPECT_EQ(trace.named(rank, "waiting for reductions").size(), kActive);
  for (const auto& name : {"bucket ", "shm:all_reduce"}) {
    const auto found = trace.named(rank, name);
    ASSERT_EQ(found.size(), buckets * kActive);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_THAT(found[i].track, HasSubstr("communication"));
      EXPECT_GT(found[i].end, found[i].begin);
      EXPECT_GE(found[i].begin, steps[i / buckets].begin);
      EXPECT_LE(found[i].end, steps[i / buckets].end);
    }
  }
  expect_nested(trace.slices.at(rank));
}

// Each call has one flow: from the rank that began it first through the others in order, at the begin of their
// slices.
void expect_flows(const ReadTrace& trace, std::size_t ranks) {
  std::set<std::string> connected;
  for (const auto& [id, points] : trace.flows) {
    ASSERT_EQ(points.size(), ranks) << id;
    std::set<int> seen;
    const auto first = trace.calls.find({points.front().track, points.front().time});
    ASSERT_NE(first, trace.calls.end()) << id;
    EXPECT_TRUE(connected.insert(first->second).second) << first->second;
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto& point = points[i];
      EXPECT_EQ(point.phase, i == 0 ? "s" : i + 1 == ranks ? "f" : "t");
      EXPECT_TRUE(seen.insert(point.rank).second) << first->second;
      EXPECT_GE(point.time, points[i == 0 ? 0 : i - 1].time);
      const auto slice = trace.calls.find({point.track, point.time});
      ASSERT_NE(slice, trace.calls.end()) << first->second;
      EXPECT_EQ(slice->second, first->second);
    }
  }
  for (const auto& [where, call] : trace.calls) EXPECT_TRUE(connected.contains(call)) << call;
}

// No rank's reduction ends before another's begins. Clocks are read with an error of microseconds.
void expect_simultaneous_reductions(const ReadTrace& trace, std::size_t count) {
  const auto here = trace.named(0, "shm:all_reduce");
  const auto there = trace.named(1, "shm:all_reduce");
  ASSERT_EQ(here.size(), count);
  ASSERT_EQ(there.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_LT(here[i].begin, there[i].end + 50);
    EXPECT_LT(there[i].begin, here[i].end + 50);
  }
}

const Scenario two_ranks("the profile of two ranks", [] {
  const auto context = init({.backend = "shm"});
  auto net = make_profiled_net();
  DistributedDataParallel ddp(net, {.bucket_cap_mb = 0.0005});
  std::string table;
  auto options = quiet(profile_file("trace.json"));
  options.on_trace_ready = [&](const Profiler& ready) { table = ready.table(); };
  Profiler profiler(options);
  train_profiled(ddp, profiler, 2 + kActive + 1);
  if (!context.is_main_process()) {
    EXPECT_THAT(profiler.key_averages(), IsEmpty());
    EXPECT_EQ(table, "");
    return;
  }
  const auto buckets = ddp->buckets().size();
  ASSERT_GT(buckets, 1U);
  const ReadTrace trace(options.path);
  EXPECT_THAT(trace.processes, ::testing::ElementsAre("rank 0", "rank 1"));
  for (int rank = 0; rank < 2; ++rank) expect_training_in(trace, rank, buckets);
  expect_simultaneous_reductions(trace, buckets * kActive);
  EXPECT_GE(trace.flows.size(), buckets * kActive);
  expect_flows(trace, 2);
  for (const auto& reduction : trace.named(1, "shm:all_reduce"))
    EXPECT_THAT(reduction.call, MatchesRegex("all_reduce #[0-9]+ of group default"));
  EXPECT_THAT(trace.named(0, "lockstep call"), IsEmpty());
  ASSERT_EQ(trace.clocks.size(), 1U);
  EXPECT_EQ(trace.clocks[0].at("ranks"), json::parse("[0, 1]"));
  EXPECT_EQ(trace.clocks[0].at("error_us"), 0);

  auto counts = counts_of(profiler.key_averages());
  EXPECT_EQ(counts["aten::addmm"], 2 * 2 * kActive);
  EXPECT_EQ(counts["ProfilerStep*"], 2 * kActive);
  EXPECT_EQ(counts["shm:all_reduce"], 2 * kActive * std::int64_t(buckets));
  EXPECT_THAT(table, AllOf(HasSubstr("ProfilerStep*"), HasSubstr("Self CPU time total")));
  EXPECT_EQ(std::ranges::count(table, '\n'), 1 + 20 + 1);
});

const Scenario refused("profilers that fail on all ranks", [] {
  const auto context = init({.backend = "shm"});
  namespace libtorch = torch::autograd::profiler;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set activities{torch::profiler::impl::ActivityType::CPU};
  auto net = make_profiled_net();
  {
    Profiler profiler(quiet(profile_file("late.json")));
    if (context.rank() == 1) {
      libtorch::prepareProfiler(config, activities);
      libtorch::enableProfiler(config, activities);
    }
    EXPECT_THAT(error_of<ArgumentError>([&] { profiler.step(); }),
                HasSubstr("on rank 1 a profiler is already"));
    train_profiled(net, profiler, 5);
    if (context.rank() == 1) libtorch::disableProfiler();
  }
  auto options = quiet(profile_file("no/such/trace.json"));
  options.wait = context.rank();
  EXPECT_THAT(error_of<DesyncError>([&] { Profiler profiler(options); }),
              AllOf(HasSubstr("rank 0 is wait 0"), HasSubstr("rank 1 is wait 1")));
  options.wait = 0;
  Profiler profiler(options);
  train_profiled(net, profiler, 2);
  EXPECT_THAT(error_of([&] { profiler.stop(); }),
              HasSubstr("no/such/trace.json (No such file or directory)"));
  EXPECT_EQ(profiler.key_averages().empty(), !context.is_main_process());
});

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

class Profiles : public ::testing::Test {
 protected:
  void expect_passes(const Scenario& scenario) const {
    expect_all_passed(run_ranks(scenario, {.env = {{"PROFILE_FOLDER", folder_.path().string()}}}));
  }
  TempFolder folder_;
};

TEST_F(Profiles, HaveBothRanksWithBucketsAndCollectives) { expect_passes(two_ranks); }
TEST_F(Profiles, FailOnAllRanks) { expect_passes(refused); }
TEST_F(Profiles, HaveOneClock) { expect_passes(common_clock); }
TEST_F(Profiles, AlignTheClocksOfHosts) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes networks";
  expect_all_passed(
      run_ranks(two_clocks, {.world_size = 3, .env = {{"PROFILE_FOLDER", folder_.path().string()}}}));
}

TEST_F(Profiles, OfOneProcessHavePythonsOperators) {
  const auto file = folder_.file("trace.json");
  auto net = make_profiled_net();
  Profiler profiler(quiet(file));
  train_profiled(net, profiler, 2 + kActive + 1);

  std::map<std::string, std::int64_t> python;
  std::istringstream lines(
      run_python("parity/operator_counts.py", {.args = {"1", "1", std::to_string(kActive)}}));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, key;
    std::int64_t count = 0;
    if (!(words >> word >> count) || word != "operator") continue;
    std::getline(words.ignore(1), key);
    python[key] = count;
  }
  EXPECT_GT(python.size(), 30U);
  auto counts = counts_of(profiler.key_averages());
  // The frontends differ in these: C++'s Linear calls addmm itself, and backward() makes its ones otherwise.
  for (const auto* key : {"aten::linear", "aten::empty", "aten::empty_strided", "aten::detach", "detach"}) {
    counts.erase(key);
    python.erase(key);
  }
  EXPECT_EQ(counts, python);

  double self = 0, steps = 0, in_file = 0;
  for (const auto& times : profiler.key_averages()) {
    EXPECT_GE(times.self_cpu_time_total, -1e-3) << times.key;
    EXPECT_LE(times.self_cpu_time_total, times.cpu_time_total) << times.key;
    self += times.self_cpu_time_total;
    if (times.key == "ProfilerStep*") steps = times.cpu_time_total;
  }
  const ReadTrace trace(file);
  for (const auto& slice : trace.named(0, "ProfilerStep#")) in_file += slice.end - slice.begin;
  EXPECT_NEAR(self, steps, 0.01);
  EXPECT_NEAR(in_file, steps, 0.01);
}

TEST_F(Profiles, AreWrittenOnceAndByOneProfilerAtATime) {
  auto net = make_profiled_net();
  auto options = quiet(folder_.file("first.json"));
  options.wait = options.warmup = 0;
  int calls = 0;
  options.on_trace_ready = [&](const Profiler&) { ++calls; };
  Profiler first(options);
  EXPECT_THAT(error_of<ArgumentError>([&] { Profiler second(options); }), HasSubstr("already active"));
  train_profiled(net, first, kActive + 2);
  first.stop();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ReadTrace(options.path).named(0, "ProfilerStep#").size(), kActive);
  {
    options.path = folder_.file("abandoned.json");
    Profiler abandoned(options);
    train_profiled(net, abandoned, 1);
  }
  EXPECT_FALSE(std::filesystem::exists(options.path));
  options.path = folder_.file("stopped.json");
  options.warmup = 2;
  Profiler never_active(options);
  never_active.stop();
  EXPECT_EQ(calls, 1);
  options.warmup = 0;
  Profiler stopped(options);
  train_profiled(net, stopped, 1);
  stopped.stop();
  // The second step began with the end of the first.
  EXPECT_EQ(ReadTrace(options.path).named(0, "ProfilerStep#").size(), 2U);
}

TEST_F(Profiles, ShortFormPrintsTheTable) {
  auto net = make_profiled_net();
  ::testing::internal::CaptureStdout();
  auto profiler = profile(2, folder_.file("short.json"));
  train_profiled(net, profiler, 4);
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), profiler.table());
  EXPECT_EQ(counts_of(profiler.key_averages())["aten::addmm"], 4);
}

TEST(ProfilerOptions, AreChecked) {
  EXPECT_THAT(error_of<ArgumentError>([] { Profiler profiler({.path = ""}); }), HasSubstr("path is empty"));
  EXPECT_THAT(error_of<ArgumentError>([] { (void)profile(0, "x"); }), HasSubstr("active = 0"));
  EXPECT_THAT(error_of<ArgumentError>([] { Profiler profiler({.path = "x", .wait = -1}); }),
              HasSubstr("wait = -1"));
}

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
