// SPDX-License-Identifier: BSD-3-Clause
// Runs on several hosts, read on each of them.
#include "observe/join_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "observe/host_snapshot.h"
#include "observe/verdict.h"
#include "run_on_hosts.h"
#include "runs.h"

namespace lockstep::testing {
namespace {

using observe::Cause;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kComm = Phase::communication;

// Two ranks of four, which have been in their phase for two seconds.
observe::Run host(const std::string& name, int first_rank, const std::vector<Phase>& phases,
                  std::vector<std::vector<observe::Membership>> groups = {{}, {}}) {
  auto run = run_of(std::move(groups));
  run.host = name;
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    run.ranks[i].rank = first_rank + static_cast<int>(i);
    run.ranks[i].progress = {.size = 4, .phase = phases[i], .phase_since = kNow - 2 * kSecond, .steps = 5};
  }
  return run;
}

observe::Run with_later_clock(observe::Run run, std::int64_t by) {
  run.taken_at += by;
  for (auto& rank : run.ranks) {
    rank.progress->phase_since += by;
    for (auto& member : rank.groups) {
      for (auto& each : member.calls) each.issued_at += by;
    }
  }
  return run;
}

TEST(JoinHosts, KeepsTheAgesOfEachClock) {
  const auto second = with_later_clock(host("b", 2, {kComm, kComm}, {{member(0, 2, {call(1, 3)}, true)}, {}}),
                                       5000 * kSecond);
  const auto whole = observe::join_hosts({host("a", 0, {kComm, kComm}), second});
  ASSERT_EQ(whole.ranks.size(), 4U);
  EXPECT_TRUE(whole.is_whole());
  EXPECT_EQ(whole.ranks[2].progress->phase_since, kNow - 2 * kSecond);
  EXPECT_EQ(whole.ranks[2].groups[0].calls[0].issued_at, kNow - 3 * kSecond);
  EXPECT_EQ(whole.ranks[2].describe(), "rank 2 (pid 100 on b)");
  EXPECT_EQ(to_json(whole)["ranks"][3]["host"], "b");
}

// Both hosts have a group of one name, and those of one host have come further.
TEST(JoinHosts, KeepsGroupsOfDifferentHostsApart) {
  const auto groups = [](std::uint64_t number) {
    const std::vector<observe::Call> calls{call(number, 2)};
    return std::vector{std::vector{member(0, 2, calls, true, "pair")},
                       std::vector{member(1, 2, calls, true, "pair")}};
  };
  const auto verdict = observe::judge(observe::join_hosts(
      {host("a", 0, {kComm, kComm}, groups(1)), host("b", 2, {kComm, kComm}, groups(9))}));
  EXPECT_EQ(verdict.cause, Cause::none) << verdict.text;
}

TEST(JoinHosts, TakesARankFromWhereItIsKnownAlive) {
  auto first = host("a", 0, {kComm, kComm});
  first.ranks[1].life = observe::Life::dead;  // of another launcher of this machine
  const auto whole = observe::join_hosts({first, host("b", 1, {kComm, kComm})});
  ASSERT_EQ(whole.ranks.size(), 3U);
  EXPECT_EQ(whole.ranks[1].life, observe::Life::alive);
  EXPECT_EQ(whole.ranks[1].host, "b");
  const auto twice = observe::join_hosts({host("a", 0, {kComm, kComm}), host("a", 2, {kComm, kComm})});
  EXPECT_EQ(twice.hosts[1].name, "a (2)");
}

TEST(JoinHosts, TheOneRankThatIsInNoCallIsNamed) {
  const auto judge_with = [](Phase third, Phase last, std::int64_t skew = 0) {
    auto whole = observe::join_hosts({host("a", 0, {kComm, kComm}), host("b", 2, {third, last})});
    whole.skew = skew;
    return observe::judge(whole);
  };
  const auto verdict = judge_with(kComm, Phase::forward);
  EXPECT_EQ(verdict.cause, Cause::missing);
  EXPECT_THAT(verdict.ranks, ElementsAre(3));
  EXPECT_THAT(verdict.text,
              HasSubstr("rank 3 (pid 101 on b) is in no call, and ranks 0, 1 and 2 have waited 2.0 s "
                        "in calls over the hosts. It has been in forward for 2.0 s"));
  EXPECT_EQ(judge_with(kComm, Phase::data).cause, Cause::starved);
  EXPECT_EQ(judge_with(kComm, kComm).cause, Cause::none);
  EXPECT_EQ(judge_with(kComm, Phase::checkpoint).cause, Cause::none);
  EXPECT_EQ(judge_with(kComm, Phase::forward, kSecond + 1).cause, Cause::none) << "they were read apart";
  EXPECT_EQ(judge_with(Phase::forward, Phase::forward).cause, Cause::none)
      << "the calls may be those of a group of ranks 0 and 1";
}

TEST(HostSnapshot, IsReadAsItWasMade) {
  const auto run = host("a", 2, {kComm, Phase::data}, {{member(0, 2, {call(1, 3)}, true)}, {}});
  std::vector<std::string> parts;
  for (const auto& rank : run.ranks) parts.push_back(observe::part_of(run, rank, 1 << 20));
  const auto back = observe::snapshot_from(parts);
  EXPECT_EQ(to_json(back.run), to_json(run));
  EXPECT_EQ(back.resident.at(3), 1 << 20);
  for (const char* text : {"", "[]", "{}", R"({"run":{},"resident":1})", R"({"run":[],"resident":1})"})
    EXPECT_THROW(observe::snapshot_from({text}), Error) << text;
}

TEST(HostSnapshot, OfManyGroupsKeepsTheLastCalls) {
  auto run = host("a", 0, {kComm, kComm});
  std::vector<observe::Call> calls;
  for (std::uint64_t i = 1; i <= 64; ++i) calls.push_back(call(i, 1));
  for (int group = 0; group < 200; ++group)
    run.ranks[0].groups.push_back(member(0, 2, calls, true, std::to_string(group)));
  const auto part = observe::part_of(run, run.ranks[0], 0);
  EXPECT_LE(part.size(), observe::kMostPart);
  const auto back = observe::snapshot_from({part}).run.ranks[0];
  EXPECT_EQ(back.groups.size(), 200U);
  EXPECT_EQ(back.groups[0].calls.back().sequence, 64U);
}

TEST(ReadingOfHosts, HidesNoHostBehindAnother) {
  const auto run = host("sent name", 0, {kComm, kComm});
  std::vector<std::string> parts;
  for (const auto& rank : run.ranks) parts.push_back(observe::part_of(run, rank, 0));
  const auto reading = cli::reading_of({{.name = "a", .parts = parts, .after_ms = 30},
                                        {.name = "b", .problem = "it did not answer"},
                                        {.name = "c", .parts = {"nonsense"}},
                                        {.name = "d", .problem = "it broke off", .parts = {parts[0]}}});
  EXPECT_EQ(reading.run.ranks.size(), 2U);
  EXPECT_EQ(reading.run.ranks[0].host, "a");
  EXPECT_EQ(reading.run.skew, 30'000'000);
  ASSERT_EQ(reading.run.hosts.size(), 4U);
  EXPECT_THAT(reading.run.hosts[0].problem, IsEmpty());
  EXPECT_EQ(reading.run.hosts[1].problem, "it did not answer");
  EXPECT_THAT(reading.run.hosts[2].problem, HasSubstr("not a snapshot of a rank"));
  EXPECT_EQ(reading.run.hosts[3].problem, "it broke off");
  EXPECT_THAT(observe::judge(reading.run).text,
              AllOf(HasSubstr("No rank"), HasSubstr("Not seen: the ranks of b, c, d.")));
}

}  // namespace
}  // namespace lockstep::testing
