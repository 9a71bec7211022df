// SPDX-License-Identifier: BSD-3-Clause
// Launchers of a run on several hosts are lost with all their ranks; the ranks of the other hosts keep their processes, and
// the run ends with the bits of an undisturbed one.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/training_on_hosts.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

using Words = std::vector<std::string>;

Words on_loss(const std::string& what, int max_restarts, Words more = {}) {
  more.insert(more.end(), {"--on-loss", what, "--max-restarts", std::to_string(max_restarts)});
  return more;
}

// The weights of a run without losses.
const std::set<std::string>& calm_on(int hosts, int ranks_of_host) {
  static std::map<std::pair<int, int>, std::set<std::string>> weights;
  auto& found = weights[{hosts, ranks_of_host}];
  if (found.empty()) {
    found =
        TrainingOnHosts({.options = on_loss("replace", 1), .hosts = hosts, .ranks_of_host = ranks_of_host})
            .finish();
  }
  return found;
}

// Ranks 0 and 1 of this launcher have begun again after the loss, in the processes of before.
void expect_same_processes(const LauncherProcess& launcher) {
  for (const int rank : {0, 1}) {
    std::multiset<std::string> pids;
    for (const auto& line : lines_of(launcher.out())) {
      const auto end = line.find(fmt::format(" of {} at step ", rank));
      const auto begin = line.find("pid ");
      if (end != std::string::npos && begin != std::string::npos)
        pids.insert(line.substr(begin, end - begin));
    }
    EXPECT_THAT(pids, SizeIs(2)) << launcher.out();
    EXPECT_THAT(std::set(pids.begin(), pids.end()), SizeIs(1)) << launcher.out();
  }
}

TEST(LostLaunchers, ComeBackAndTheBitsStay) {
  ASSERT_THAT(calm_on(2, 2), SizeIs(4));
  TrainingOnHosts training({.options = on_loss("replace", 2)});
  training.wait_for_last_step();
  training.kill_launcher(1);
  training.start_again(1);
  EXPECT_EQ(training.finish(), calm_on(2, 2)) << training.err();
  expect_same_processes(training.launcher(0));
  EXPECT_THAT(
      training.launcher(0).err(),
      AllOf(HasSubstr(
                "was lost: its connection closed; the other ranks wait 10 min for a launcher that takes its "
                "place: --node-rank 1"),
            HasSubstr("has taken the place of node 1; its ranks are replaced (2 of 2 restarts)"),
            HasSubstr("all 4 ranks continued from commit 299"), Not(HasSubstr("stopping "))));
}

TEST(LostLaunchers, AreAdoptedAndTheBitsStay) {
  ASSERT_THAT(calm_on(2, 2), SizeIs(4));
  TrainingOnHosts training({.options = on_loss("oversubscribe", 2)});
  training.wait_for_last_step();
  training.kill_launcher(1);
  EXPECT_EQ(training.finish({1}), calm_on(2, 2)) << training.err();
  expect_same_processes(training.launcher(0));
  EXPECT_THAT(training.launcher(0).err(),
              AllOf(HasSubstr("; the launcher of node 0 ("), HasSubstr("has taken the place of node 1"),
                    HasSubstr("all 4 ranks continued from commit 299"), Not(HasSubstr("stopping "))));
}

// One rank of a host that stays is replaced by the launcher of that host.
TEST(LostLaunchers, AreAdoptedOneAfterTheOther) {
  ASSERT_THAT(calm_on(3, 1), SizeIs(3));
  TrainingOnHosts training({.options = on_loss("oversubscribe", 3), .hosts = 3, .ranks_of_host = 1});
  training.wait_for_last_step();
  training.kill_launcher(2);
  for (const char* rank : {"of 0 at step 299", "of 2 at step 299"}) training.launcher(0).wait_for(rank);
  training.launcher(1).wait_for("of 1 at step 299");
  training.kill_launcher(1);
  for (const char* rank : {"of 0 at step 299", "of 2 at step 299"}) training.launcher(0).wait_for(rank, 2);
  training.launcher(0).wait_for("of 1 at step 299");
  ::kill(training.rank(0), SIGKILL);
  EXPECT_EQ(training.finish({1, 2}), calm_on(3, 1)) << training.err();
  EXPECT_THAT(training.launcher(0).err(),
              AllOf(HasSubstr("its replacement runs (3 of 3 restarts)"), Not(HasSubstr("stopping "))));
  EXPECT_EQ(std::ranges::count_if(lines_of(training.launcher(0).err()),
                                  [](const auto& line) {
                                    return line.find("has taken the place of node 1") != std::string::npos;
                                  }),
            1);
}

TEST(LostLaunchers, ThatDoNotComeBackEndTheRun) {
  TrainingOnHosts training({.options = on_loss("replace", 4, {"--rdzv-conf", "join_timeout=6"})});
  training.wait_for_last_step();
  training.kill_launcher(1);
  EXPECT_EQ(training.launcher(0).finish(), 1);
  EXPECT_THAT(training.launcher(0).err(),
              HasSubstr("was lost: its connection closed; no launcher has taken its place within 6 s"));
  training.launcher(0).wait_for_no_family();
  training.start_again(1);
  EXPECT_EQ(training.launcher(1).finish(), 1);
  EXPECT_THAT(training.launcher(1).err(), HasSubstr("no launcher answers at"));
}

TEST(LostLaunchers, AreRefusedWithOtherRanks) {
  TrainingOnHosts training({.options = on_loss("replace", 4)});
  training.wait_for_last_step();
  training.kill_launcher(1);
  auto stranger = training.new_launcher(1, 1);
  EXPECT_EQ(stranger->finish(), 1);
  EXPECT_THAT(
      stranger->err(),
      HasSubstr("has 1 ranks of role default, but the lost node 1, whose place it would take, has 2"));
  training.launcher(0).send(SIGTERM);
  training.launcher(0).finish();
}

// It coordinates the nodes and serves the store of the run.
TEST(LostLaunchers, OfNode0EndTheRun) {
  TrainingOnHosts training({.options = on_loss("oversubscribe", 4), .hosts = 3, .ranks_of_host = 1});
  training.wait_for_last_step();
  training.kill_launcher(0);
  for (const int host : {1, 2}) {
    EXPECT_NE(training.launcher(host).finish(), 0);
    EXPECT_THAT(training.launcher(host).err(), HasSubstr(", which coordinates the nodes, "));
    training.launcher(host).wait_for_no_family();
  }
}

// The host right loses its network while all its processes are stopped. When they go on, another launcher has its place.
class TwoNetworks {
 public:
  TwoNetworks()
      : nodes_(
            {"run", "--on-loss", "restart", "--", "unshare", "-Urn", LOCKSTEP_TWO_NODES, LOCKSTEP_PROGRAM,
             fmt::format("exec {} {} {}", ELASTIC_RANK_PROGRAM, kStepsOnHosts, folder_.path().string()), "2",
             "2"},
            {.env = {{"PET_ON_LOSS", "oversubscribe"},
                     {"PET_RDZV_CONF", "keep_alive_interval=1,keep_alive_max_attempt=3"},
                     {"ELASTIC_RANK_TIMEOUT", "20"},  // a call over gloo to a host without network ends then
                     {"OMP_NUM_THREADS", "1"}},
             .watchdog = 120s}) {
    nodes_.wait_for("pid ", 4);
    nodes_.wait_for("waits");
    for (const pid_t pid : nodes_.family())
      if (network_of(pid) == network_of(nodes_.rank_pid(2))) stale_.push_back(pid);
    inside_ = nodes_.rank_pid(2);
  }

  LauncherProcess& nodes() { return nodes_; }
  void signal_stale(int signal) const {
    for (const pid_t pid : stale_) ::kill(pid, signal);
  }
  void set_link(const std::string& state) const {
    LauncherProcess changed({"--preserve-credentials", "-U", "-n", "-t", std::to_string(inside_), "sh", "-c",
                             "ip link set dev right " + state},
                            {.program = "/usr/bin/nsenter"});
    ASSERT_EQ(changed.finish(), 0) << changed.err();
  }
  void allow_last_step() const { std::ofstream(folder_.path() / "enough").flush(); }

 private:
  static std::filesystem::path network_of(pid_t pid) {
    std::error_code gone;
    return std::filesystem::read_symlink(fmt::format("/proc/{}/ns/net", pid), gone);
  }

  TempFolder folder_;
  LauncherProcess nodes_;
  std::vector<pid_t> stale_;
  pid_t inside_ = -1;
};

TEST(LostLaunchers, AreFencedWhenTheyComeBackTooLate) {
  ASSERT_THAT(calm_on(2, 2), SizeIs(4));
  TwoNetworks networks;
  auto& nodes = networks.nodes();
  networks.signal_stale(SIGSTOP);
  networks.set_link("down");
  nodes.wait_for("of 2 at step 299");  // in its new place
  networks.set_link("up");
  networks.signal_stale(SIGCONT);
  networks.allow_last_step();
  EXPECT_NE(nodes.finish(), 0) << nodes.err();  // of the stale launcher
  EXPECT_EQ(weights_in(nodes), calm_on(2, 2)) << nodes.err();
  const auto lines = lines_of(nodes.out());
  EXPECT_EQ(std::ranges::count_if(
                lines, [](const auto& line) { return line.find("trained 2") != std::string::npos; }),
            1)
      << nodes.out();
  EXPECT_THAT(nodes.err(), AllOf(HasSubstr("has taken the place of node 1"),
                                 HasSubstr("so the run ends; stopping this node's ranks")));
  nodes.wait_for_no_family();
}

}  // namespace
}  // namespace lockstep::testing
