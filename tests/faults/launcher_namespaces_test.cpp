// SPDX-License-Identifier: BSD-3-Clause
// Two nodes with networks of their own, on this machine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Under a launcher, which leaves nothing behind whatever happens here.
LauncherProcess two_nodes(const std::string& script, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"run", "--", "unshare", "-Urn", LOCKSTEP_TWO_NODES, LOCKSTEP_PROGRAM,
                                 script};
  words.insert(words.end(), more.begin(), more.end());
  return LauncherProcess(words);
}

// Some containers forbid it; a machine of one's own does not.
bool may_make_namespaces() {
  LauncherProcess launcher({"run", "--", "unshare", "-Urn", "true"});
  return launcher.finish() == 0;
}

TEST(LauncherNamespaces, TwoNodesStartFailRestartAndFinish) {
  if (!may_make_namespaces()) GTEST_SKIP() << "this system lets nobody make namespaces";
  auto nodes = two_nodes(
      fmt::format("test $TORCHELASTIC_RESTART_COUNT-$RANK = 0-1 && kill -9 $$; exec {}", LOCKSTEP_HELLO));
  EXPECT_EQ(nodes.finish(), 0) << nodes.err();
  EXPECT_THAT(nodes.out(),
              AllOf(HasSubstr("rank 0 of 2: the sum is 3"), HasSubstr("rank 1 of 2: the sum is 3")));
  EXPECT_THAT(nodes.err(), AllOf(HasSubstr("rank 1 was killed by SIGKILL; restart 1 of 1"),
                                 HasSubstr("each rank is on a host of its own")));
  nodes.wait_for_no_family();
}

TEST(LauncherNamespaces, TheFirstNodesOwnNameMayBeALoopbackAddressThere) {
  if (!may_make_namespaces()) GTEST_SKIP() << "this system lets nobody make namespaces";
  auto nodes = two_nodes("echo $RANK of $WORLD_SIZE", {"1", "0", "node0"});
  EXPECT_EQ(nodes.finish(), 0) << nodes.err();
  EXPECT_THAT(nodes.out(), AllOf(HasSubstr("0 of 2"), HasSubstr("1 of 2")));
  EXPECT_THAT(nodes.err(), HasSubstr("any program that can connect to port 29500 of this host"));
}

TEST(LauncherNamespaces, BothNodesNameTheRankThatFailed) {
  if (!may_make_namespaces()) GTEST_SKIP() << "this system lets nobody make namespaces";
  auto nodes = two_nodes("test $RANK = 0 && exec sleep 1000; echo bad luck >&2; exit 7");
  EXPECT_EQ(nodes.finish(), 7) << nodes.err();
  int verdicts = 0;
  for (const auto& line : lines_of(nodes.err())) {
    if (line.starts_with("[rank 0] [lockstep] rank 1 failed first: it exited with code 7")) ++verdicts;
  }
  // The outer launcher repeats these lines when it shows the last output of its own rank 0.
  EXPECT_EQ(verdicts, 2) << nodes.err();
}

}  // namespace
}  // namespace lockstep::testing
