// SPDX-License-Identifier: BSD-3-Clause
// Profiler and the traces of several ranks, beside torch.profiler.
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <lockstep/lockstep.h>
#include <lockstep/training/profile.h>

#include "multiprocess/read_trace.h"
#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

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

std::map<std::string, std::int64_t> counts_of(const std::vector<OperatorTimes>& operators) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& times : operators) counts[times.key] = times.count;
  return counts;
}

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
  offer_trace(options.path);
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

class Profiles : public ::testing::Test {
 protected:
  void expect_passes(const Scenario& scenario) const {
    expect_all_passed(run_ranks(scenario, {.env = {{"PROFILE_FOLDER", folder_.path().string()}}}));
  }
  TempFolder folder_;
};

TEST_F(Profiles, HaveBothRanksWithBucketsAndCollectives) { expect_passes(two_ranks); }
TEST_F(Profiles, FailOnAllRanks) { expect_passes(refused); }

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

}  // namespace
}  // namespace lockstep::testing
