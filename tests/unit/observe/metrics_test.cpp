// SPDX-License-Identifier: BSD-3-Clause
#include "observe/metrics.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "runs.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

observe::Progress progress() {
  observe::Progress made{.phase = Phase::data, .phase_since = kNow - 2 * kSecond, .steps = 7, .samples = 224};
  made.spent.at(static_cast<std::size_t>(Phase::data)) = kSecond / 2;
  made.epoch = 3;
  made.gathered = 4096;
  made.memory = {{.at = 1, .resident = 10}, {.at = 2, .resident = 20}};
  made.numbers = {{"loss", 0.25}, {"a \"b\"\\c\nd", 1}};
  return made;
}

// Two ranks, of which rank 1 waits.
observe::Run run() {
  auto made = run_of({{member(0, 2, {call(1, 9)}, false)}, {member(1, 2, {call(1, 9), call(2, 1.5)}, true)}});
  for (auto& rank : made.ranks) {
    rank.groups[0].backend = "shm";
    rank.groups[0].bytes = 64;
    rank.progress = progress();
  }
  return made;
}

TEST(Metrics, AreLinesOfPrometheus) {
  const auto text = metrics_text(run(), {.ranks = 2, .restarts = 1, .problem = ""});
  const std::string labels = R"(host="node3",run="job",rank="1")";
  EXPECT_THAT(text, HasSubstr("# TYPE lockstep_restarts_total counter\n"
                              "lockstep_restarts_total{host=\"node3\",run=\"job\"} 1\n"));
  for (const auto& line :
       {"lockstep_rank_up{" + labels + "} 1", "lockstep_steps_total{" + labels + "} 7",
        "lockstep_samples_total{" + labels + "} 224", "lockstep_epoch{" + labels + "} 3",
        "lockstep_phase{" + labels + R"(,phase="data"} 1)",
        "lockstep_phase{" + labels + R"(,phase="other"} 0)",
        "lockstep_phase_seconds_total{" + labels + R"(,phase="data"} 2.5)",
        "lockstep_phase_seconds_total{" + labels + R"(,phase="other"} 0)",
        "lockstep_resident_bytes{" + labels + "} 20", "lockstep_gathered_bytes{" + labels + "} 4096",
        "lockstep_communication_bytes_total{" + labels + R"(,backend="shm",group="default"} 64)",
        "lockstep_calls_total{" + labels + R"(,backend="shm",group="default"} 2)",
        "lockstep_call_age_seconds{" + labels + "} 1.5",
        std::string(R"(lockstep_call_age_seconds{host="node3",run="job",rank="0"} 0)"),
        "lockstep_reported{" + labels + R"(,name="loss"} 0.25)",
        "lockstep_reported{" + labels + R"(,name="a \"b\"\\c\nd"} 1)"}) {
    EXPECT_THAT(text, HasSubstr("\n" + line + "\n"));
  }
}

TEST(Metrics, ShowNumbersThatAreNotFinite) {
  auto strange = run();
  constexpr auto kInfinity = std::numeric_limits<double>::infinity();
  strange.ranks[0].progress->numbers = {
      {"nan", std::numeric_limits<double>::quiet_NaN()}, {"up", kInfinity}, {"down", -kInfinity}};
  const auto text = metrics_text(strange, {});
  EXPECT_THAT(text, HasSubstr("name=\"nan\"} NaN\n"));
  EXPECT_THAT(text, HasSubstr("name=\"up\"} +Inf\n"));
  EXPECT_THAT(text, HasSubstr("name=\"down\"} -Inf\n"));
}

TEST(Metrics, ReplaceWhatIsNotUtf8) {
  auto strange = run();
  strange.ranks[0].progress->numbers = {{"caf\xC3\xA9 \xFF\xC3", 1}};
  EXPECT_THAT(metrics_text(strange, {}), HasSubstr("name=\"caf\xC3\xA9 \uFFFD\uFFFD\"} 1\n"));
}

TEST(Metrics, ADeadRankIsDownWithoutProgress) {
  auto with_dead = run();
  with_dead.ranks[1].life = observe::Life::dead;
  with_dead.ranks[1].progress.reset();
  const auto text = metrics_text(with_dead, {});
  EXPECT_THAT(text, HasSubstr("lockstep_rank_up{host=\"node3\",run=\"job\",rank=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_steps_total{host=\"node3\",run=\"job\",rank=\"0\"} 7\n"));
  EXPECT_THAT(text, Not(HasSubstr("lockstep_steps_total{host=\"node3\",run=\"job\",rank=\"1\"}")));
}

TEST(Metrics, HaveOneSampleForEachSetOfLabels) {
  auto twice = run();
  twice.ranks[1].rank = 0;
  const auto text = metrics_text(twice, {});
  std::set<std::string> names;
  for (const auto& line : split(text, '\n')) {
    const auto name = line.substr(0, line.rfind(' '));
    if (name.starts_with('#')) continue;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(Metrics, SayWhyRanksCannotBeRead) {
  const observe::Run none{.host = "node3"};
  const auto text = metrics_text(none, {.ranks = 2, .problem = "process 4711 is\nof another version"});
  EXPECT_THAT(text, HasSubstr("\n# process 4711 is of another version\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_ranks{host=\"node3\",run=\"\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("lockstep_steps_total")));
}

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

std::string read(const std::string& file) {
  std::ifstream stream(std::string(LOCKSTEP_DOCS_FOLDER) + "/" + file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Metrics, AreTheOnesOfTheirPageDashboardAndRules) {
  const auto names = matches(metrics_text(run(), {}), "# TYPE (\\S+)");
  EXPECT_TRUE(nlohmann::json::accept(read("metrics/dashboard.json")));
  EXPECT_EQ(matches(read("observe.md"), "\\| `(lockstep_\\w+)"), names);
  for (const auto* const file : {"metrics/dashboard.json", "metrics/alerts.yml"}) {
    const auto used = matches(read(file), "\\b(lockstep_\\w+)");
    EXPECT_THAT(used, Not(IsEmpty())) << file;
    EXPECT_THAT(names, IsSupersetOf(used)) << file;
  }
}

}  // namespace
}  // namespace lockstep::testing
