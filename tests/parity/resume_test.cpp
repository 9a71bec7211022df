// SPDX-License-Identifier: BSD-3-Clause
// A run that stops after half its steps, in the middle of an epoch, and continues in a new process, of either
// language.
#include <algorithm>

#include <gtest/gtest.h>

#include "parity/resume_training.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::resume_test {
namespace {

constexpr std::int64_t kHalf = 50;
constexpr std::int64_t kWhole = 100;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void train_on() {
  torch::set_num_threads(1);
  ResumeTraining training(variable("FROM").empty() ? 1 : 99);
  if (!variable("FROM").empty()) training.state().load_state_dict(load(variable("FROM")).as_dict());
  training.train(std::stoll(variable("UNTIL")));
  const auto state = training.state().state_dict();
  if (!is_initialized() || get_rank() == 0) save(state, variable("TO"), {.sync = false});
}

const Scenario go_on("train from a file to a file", train_on);

const Scenario go_on_together("train from a file to a file on several ranks", [] {
  const auto context = init({.backend = "gloo"});
  train_on();
});

struct Run {
  int ranks = 0;  // 0: a process without init()
  int loader_threads = 0;
};

void in_cpp(const std::string& from, std::int64_t until, const std::string& to, const Run& run = {}) {
  expect_all_passed(run_ranks(run.ranks == 0 ? go_on : go_on_together,
                              {.world_size = std::max(run.ranks, 1),
                               .env = {{"FROM", from},
                                       {"TO", to},
                                       {"UNTIL", std::to_string(until)},
                                       {"LOADER_THREADS", std::to_string(run.loader_threads)}}}));
}

void in_python(const std::string& from, std::int64_t until, const std::string& to) {
  run_python("parity/resume_training.py", {.args = {std::to_string(until), from.empty() ? "-" : from, to}});
}

// What both languages call the same.
void expect_same_training(const std::string& left, const std::string& right) {
  const auto a = load(left);
  const auto b = load(right);
  for (const auto* part : {"model", "scheduler", "epoch", "step", "generator"}) {
    EXPECT_TRUE(equal(a[part], b[part])) << part;
  }
  EXPECT_TRUE(equal(a["optimizer"]["state"], b["optimizer"]["state"]));
  EXPECT_EQ(a["loader"]["batches"].as_int(), b["loader"]["batches"].as_int());
  EXPECT_EQ(a["optimizer"]["param_groups"].as_items()[0]["lr"].as_double(),
            b["optimizer"]["param_groups"].as_items()[0]["lr"].as_double());
}

TEST(Resume, ContinuesInANewProcessOfEitherLanguageBitForBit) {
  const TempFolder folder;
  const auto file = [&](const char* name) { return folder.file(name); };
  in_cpp("", kWhole, file("whole.pt"));
  in_cpp("", kHalf, file("half.pt"));
  in_cpp(file("half.pt"), kWhole, file("cpp_cpp.pt"));
  expect_same_training(file("whole.pt"), file("cpp_cpp.pt"));

  in_python("", kWhole, file("python.pt"));
  expect_same_training(file("whole.pt"), file("python.pt"));
  in_python(file("half.pt"), kWhole, file("cpp_python.pt"));
  expect_same_training(file("whole.pt"), file("cpp_python.pt"));
  in_python("", kHalf, file("python_half.pt"));
  in_cpp(file("python_half.pt"), kWhole, file("python_cpp.pt"));
  expect_same_training(file("whole.pt"), file("python_cpp.pt"));
  EXPECT_GT(load(file("half.pt"))["loader"]["batches"].as_int(), 0)
      << "the half is not in the middle of an epoch";
}

TEST(Resume, ContinuesWithSeveralLoaderThreadsBitForBit) {
  const TempFolder folder;
  const auto file = [&](const char* name) { return folder.file(name); };
  for (const int ranks : {0, 2}) {
    in_cpp("", kWhole, file("whole.pt"), {.ranks = ranks, .loader_threads = 2});
    in_cpp("", kHalf, file("half.pt"), {.ranks = ranks, .loader_threads = 2});
    in_cpp(file("half.pt"), kWhole, file("resumed.pt"), {.ranks = ranks, .loader_threads = 3});
    EXPECT_GT(load(file("half.pt"))["loader"]["batches"].as_int(), 0);
    EXPECT_TRUE(equal(load(file("whole.pt")), load(file("resumed.pt")))) << ranks << " ranks";
  }
}

TEST(Resume, WithAnotherNumberOfRanksDoesNotDependOnLoaderThreads) {
  const TempFolder folder;
  const auto file = [&](const char* name) { return folder.file(name); };
  in_cpp("", kHalf, file("half.pt"), {.ranks = 2, .loader_threads = 2});
  in_cpp(file("half.pt"), kWhole, file("one.pt"), {.ranks = 1, .loader_threads = 1});
  in_cpp(file("half.pt"), kWhole, file("four.pt"), {.ranks = 1, .loader_threads = 4});
  EXPECT_TRUE(equal(load(file("one.pt")), load(file("four.pt"))));
}

}  // namespace
}  // namespace lockstep::testing::resume_test
