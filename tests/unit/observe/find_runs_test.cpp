// SPDX-License-Identifier: BSD-3-Clause
#include "observe/find_runs.h"

#include <csignal>
#include <new>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/shared_memory.h"
#include "base/version.h"
#include "observe/follow_run.h"

namespace lockstep::testing {
namespace {

using observe::find_run;
using observe::Life;
using observe::Segment;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(OuterRanks, AreWithoutTheProgramsThatRanksStart) {
  const std::vector<observe::MappedMemory> memory(1);
  const auto ranks = observe::outer_ranks({{.pid = 2, .parent = 1},  // a script that starts a rank
                                           {.pid = 3, .parent = 2, .progress = memory},
                                           {.pid = 4, .parent = 1, .progress = memory},
                                           {.pid = 5, .parent = 4},
                                           {.pid = 6, .parent = 5, .progress = memory},
                                           {.pid = 7, .parent = 1}});
  EXPECT_THAT(ranks, ElementsAre(Field(&observe::Process::pid, 3), Field(&observe::Process::pid, 4)));
}

// The memory of a rank in a group, with one call that it waits for. The rank is a process that pauses.
class PublishingRank {
 public:
  explicit PublishingRank(const std::string& group, std::uint64_t format = formats::kFlightRecorder.number)
      : memory_(SharedMemory::create(observe::kMemoryPrefix + group, 1U << 20U)) {
    auto& segment = *new (memory_.data()) Segment;
    auto& status = segment.status;
    segment.recorder = format;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);
      while (true) ::pause();
    }
    status.pid = status.thread = pid_;
    status.rank = 0;
    status.size = 2;
    status.job_rank = 3;
    auto& entry = status.notes[1];
    entry.kind = 1;
    entry.dtype = 6;
    entry.dims = 1;
    entry.shape[0] = 8;
    entry.file.fill('a');
    entry.file.at(entry.file.size() - 2) = '\xC3';  // half a character
    entry.file.back() = '\0';
    entry.sequence = 1;
    entry.number = 1;
    status.issued = status.awaited = 1;
    status.mark = observe::kStatusMark;
  }
  ~PublishingRank() { end(); }
  PublishingRank(const PublishingRank&) = delete;
  PublishingRank& operator=(const PublishingRank&) = delete;

  std::string pid() const { return std::to_string(pid_); }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  SharedMemory memory_;
  pid_t pid_ = 0;
};

TEST(FindRuns, ReadsTheCallsOfAStoppedRank) {
  const PublishingRank rank("seen from outside");
  rank.stop();
  const auto run = find_run(rank.pid()).read();
  ASSERT_EQ(run.ranks.size(), 1U);
  EXPECT_EQ(run.ranks[0].rank, 3);
  EXPECT_EQ(run.ranks[0].life, Life::stopped);
  EXPECT_EQ(std::to_string(run.ranks[0].pid), rank.pid());
  const auto& member = run.ranks[0].groups.at(0);
  EXPECT_EQ(member.group, "seen from outside");
  ASSERT_NE(member.unfinished(), nullptr);
  EXPECT_EQ(member.unfinished()->describe(), "broadcast #1 of Float[8]");
  EXPECT_EQ(member.unfinished()->file, std::string(59, 'a'));
}

TEST(FindRuns, ReadsTheCallsOfADeadRankThatOthersHaveMapped) {
  PublishingRank rank("of the dead");
  rank.end();
  const auto run = find_run(std::to_string(::getpid())).read();
  EXPECT_EQ(run.ranks.at(0).life, Life::dead);
  EXPECT_EQ(run.ranks[0].groups.at(0).calls.size(), 1U);
}

TEST(FindRuns, AProcessThatOnlyLooksIsNoneOfTheRun) {
  const PublishingRank rank("looked at");
  EXPECT_THAT(find_run(rank.pid()).pids, ::testing::ElementsAre(std::stoi(rank.pid())));
}

TEST(FollowedRun, ARankThatHasEndedIsDeadAtOnce) {
  PublishingRank rank("followed");
  const PublishingRank survivor("followed");  // it has inherited the memory of the other one
  observe::FollowedRun followed(rank.pid());
  EXPECT_THAT(followed.read()->ranks, ::testing::SizeIs(2));
  EXPECT_GT(followed.memory().at(std::stoi(rank.pid())).resident, 0);
  const auto pid = rank.pid();
  rank.end();
  const auto run = followed.read();
  ASSERT_TRUE(run.has_value()) << "one rank is left";
  for (const auto& each : run->ranks)
    EXPECT_EQ(each.life, std::to_string(each.pid) == pid ? Life::dead : Life::alive);
  EXPECT_THAT(followed.memory(), ::testing::SizeIs(1));
}

TEST(FindRuns, RefusesMemoryOfAnotherVersion) {
  const PublishingRank rank("of the future", 99);
  EXPECT_THAT([&] { (void)find_run(rank.pid()); },
              ThrowsMessage<Error>(HasSubstr("in flight recorder format 99")));
}

TEST(FindRuns, AnotherRunMayHaveAGroupOfTheSameName) {
  const PublishingRank one("same name");
  const PublishingRank other("same name");
  std::vector<observe::Process> processes;
  for (auto& process : observe::own_processes()) {
    const auto pid = std::to_string(process.pid);
    if (pid == one.pid() || pid == other.pid()) processes.push_back(std::move(process));
  }
  ASSERT_EQ(processes.size(), 2U);
  // The second process has also inherited the memory of the first one.
  auto& inherits = processes[processes[0].memory.size() > processes[1].memory.size() ? 0 : 1];
  const auto first = processes[&inherits == processes.data() ? 1 : 0].memory.at(0).file;
  std::erase_if(inherits.memory, [&](const auto& memory) { return memory.file == first; });
  const auto runs = observe::find_runs(processes);
  ASSERT_EQ(runs.size(), 2U);
  for (const auto& run : runs) EXPECT_EQ(run.publications.at(0).group, "same name");
}

TEST(FindRuns, SaysWhyThereIsNoRun) {
  EXPECT_THAT(
      [] { (void)find_run("nightly"); },
      ThrowsMessage<ArgumentError>(HasSubstr("there is no run \"nightly\" of this user on this host")));
  EXPECT_THAT([] { (void)find_run("2147483647"); },
              ThrowsMessage<ArgumentError>(HasSubstr("there is no process 2147483647 on this host")));
  EXPECT_THAT([] { (void)find_run(std::to_string(::getpid())); },
              ThrowsMessage<ArgumentError>(HasSubstr("is neither a rank nor above one")));
}

}  // namespace
}  // namespace lockstep::testing
