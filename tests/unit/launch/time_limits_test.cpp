// SPDX-License-Identifier: BSD-3-Clause
#include "base/time_limits.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "launch/environment.h"
#include "launch/launch_limits.h"
#include "support/error_of.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The rows of the table in the page, without the marks of code.
std::vector<std::string> rows_of_page() {
  std::ifstream page(LOCKSTEP_ERRORS_PAGE);
  std::vector<std::string> rows;
  bool is_table = false;
  for (std::string line; std::getline(page, line);) {
    std::erase(line, '`');
    if (line == "| wait | default | set by |") is_table = true;
    if (is_table && !line.starts_with('|')) break;
    if (is_table) rows.push_back(line);
  }
  return rows;
}

TEST(TimeLimits, ArePrintedAsThePageHasThem) {
  const auto rows = rows_of_page();
  LaunchOptions options{.nodes = NodesOptions{}};
  options.on_loss = OnLoss::replace;
  auto limits = launch_limits(options);
  std::ranges::copy(rank_limits(30min), std::back_inserter(limits));
  ASSERT_EQ(limits.size(), 18U);
  for (const auto& limit : limits)
    EXPECT_THAT(rows, Contains(StartsWith("| " + limit.wait + " | " + limit.limit + " | "))) << limit.wait;
}

TEST(TimeLimits, AreThoseOfTheOptions) {
  LaunchOptions options{.grace_period = 400ms, .progress_timeout = 90s};
  EXPECT_EQ(launch_limits(options).size(), 6U);
  const auto text = table_text(launch_limits(options));
  EXPECT_THAT(text,
              AllOf(HasSubstr("\n  from SIGTERM to SIGKILL  "), HasSubstr("  400 ms  --grace-period\n"),
                    HasSubstr("  a rank without progress  "), HasSubstr("  90 s    --progress-timeout")));
  options.nodes = NodesOptions{.silence_limit = 4s};
  EXPECT_EQ(launch_limits(options).back().limit, "16 s");
}

TEST(TimeLimits, ReachTheRanks) {
  const auto variable = [](const LaunchOptions& options,
                           const std::map<std::string, std::string>& inherited = {}) {
    const auto env = rank_environment(options, {}, 0, 1, Env(inherited));
    const auto found = env.find(LauncherLimits::kVariable);
    return found == env.end() ? "none" : found->second;
  };
  EXPECT_EQ(variable({}), "none");
  EXPECT_EQ(variable({}, {{LauncherLimits::kVariable, "shown=1"}}), "");  // of a launcher above
  const auto text = variable({.nodes = NodesOptions{}, .progress_timeout = 2s, .shows_limits = true});
  EXPECT_EQ(text, "progress_timeout=2000,silence_limit=15000,shown=1");
  const auto read = [](const std::string& value) {
    const std::map<std::string, std::string> variables{{LauncherLimits::kVariable, value}};
    return LauncherLimits::from(Env(variables));
  };
  const auto limits = read(text);
  EXPECT_EQ(limits.progress_timeout, 2s);
  EXPECT_EQ(limits.silence_limit, 15s);
  EXPECT_TRUE(limits.are_shown);
  EXPECT_THAT(testing::error_of<Error>([&] { read("progress_timeout=soon"); }),
              HasSubstr("is not what `lockstep run` sets"));
}

TEST(TimeLimits, ThatContradictTheTimeoutOfTheGroupAreRefused) {
  const LauncherLimits limits{.progress_timeout = 60s};
  limits.check(61s);
  LauncherLimits().check(1ms);
  EXPECT_THAT(
      testing::error_of<ArgumentError>([&] { limits.check(60s); }),
      AllOf(
          HasSubstr("the timeout of the group, 60 s, has to be at least 1 s longer than --progress-timeout"),
          HasSubstr("of `lockstep run`, 60 s"), HasSubstr("Raise InitOptions::timeout, or lower")));
  const LauncherLimits of_hosts{.silence_limit = 15s};
  EXPECT_THAT(of_hosts.warning(15s), AllOf(HasSubstr("15 s"), HasSubstr("keep_alive_interval")));
  EXPECT_EQ(of_hosts.warning(16s), "");
}

TEST(TimeLimits, OfTheSystemAroundTheLauncherAreWarnedOf) {
  const std::map<std::string, std::string> slurm{{"SLURM_JOB_ID", "7"}},
      pod{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};
  const LaunchOptions options{.grace_period = 30s};
  EXPECT_THAT(grace_warning(options, Env(slurm)),
              HasSubstr("--grace-period 30 is not shorter than SLURM's KillWait"));
  EXPECT_THAT(grace_warning(options, Env(pod)), HasSubstr("terminationGracePeriodSeconds"));
  EXPECT_EQ(grace_warning(options, Env(std::map<std::string, std::string>())), "");
  EXPECT_EQ(grace_warning({.grace_period = 29s}, Env(slurm)), "");
}

TEST(TimeLimits, AreTextsWithUnits) {
  EXPECT_EQ(span_text(20ms), "20 ms");
  EXPECT_EQ(span_text(1500ms), "1.5 s");
  EXPECT_EQ(span_text(60s), "60 s");
  EXPECT_EQ(span_text(150s), "150 s");
  EXPECT_EQ(span_text(2min), "2 min");
}

}  // namespace
}  // namespace lockstep::launch
