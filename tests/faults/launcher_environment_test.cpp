// SPDX-License-Identifier: BSD-3-Clause
// What ranks find in their environment, and that launches at the same time do not clash.
#include <map>
#include <memory>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sockets.h"
#include "support/launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

const LauncherProcess::Options kNoThreads{.env = {{"OMP_NUM_THREADS", ""}}};

// From lines "<before>NAME=value", those of one rank.
Variables variables_of(const std::string& text, const std::string& before) {
  Variables found;
  for (const auto& line : lines_of(text)) {
    const auto equals = line.find('=');
    if (!line.starts_with(before) || equals == std::string::npos) continue;
    found.emplace(line.substr(before.size(), equals - before.size()), line.substr(equals + 1));
  }
  return found;
}

bool is_launchers(const std::string& name) {
  return name.starts_with("TORCHELASTIC_") || name.starts_with("MASTER_") || name.starts_with("ROLE_") ||
         name.ends_with("RANK") || name.ends_with("WORLD_SIZE") || name == "TORCH_NCCL_ASYNC_ERROR_HANDLING";
}

bool differs_by_design(const std::string& name) {
  const std::set<std::string> names{
      "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
      // The file of a rank's traceback, and the variables of torchrun's own processes.
      "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"};
  return names.contains(name);
}

TEST(LauncherEnvironment, NumbersTheRanks) {
  LauncherProcess launcher({"run", "--nproc_per_node=3", "env"}, kNoThreads);
  ASSERT_EQ(launcher.finish(), 0) << launcher.err();
  std::set<std::string> ports;
  for (int rank = 0; rank < 3; ++rank) {
    auto env = variables_of(launcher.out(), fmt::format("[rank {}] ", rank));
    EXPECT_EQ(env["RANK"], std::to_string(rank));
    EXPECT_EQ(env["LOCAL_RANK"], std::to_string(rank));
    EXPECT_EQ(env["WORLD_SIZE"], "3");
    EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "3");
    EXPECT_EQ(env["MASTER_ADDR"], "127.0.0.1");
    EXPECT_GE(std::stoi(env["OMP_NUM_THREADS"]), 1);
    ports.insert(env["MASTER_PORT"]);
  }
  EXPECT_EQ(ports.size(), 1u);
}

// The oracle: every variable that torchrun adds, with its value, apart from those that differ by design.
TEST(LauncherEnvironment, EqualsTorchruns) {
  const std::string script = "env | while read -r line; do echo \"of $RANK $line\"; done";
  const std::string command = fmt::format(
      "{} -m torch.distributed.run --no-python --nproc-per-node 2 --master-port {} /bin/sh -c '{}'",
      LOCKSTEP_PYTHON, free_port(), script);
  LauncherProcess torchrun(shell_ranks(1, command), kNoThreads);
  LauncherProcess ours(shell_ranks(2, script, {"--master-port", free_port()}), kNoThreads);
  ASSERT_EQ(torchrun.finish(), 0) << torchrun.err();
  ASSERT_EQ(ours.finish(), 0) << ours.err();

  for (int rank = 0; rank < 2; ++rank) {
    const auto theirs = variables_of(torchrun.out(), fmt::format("[rank 0] of {} ", rank));
    auto env = variables_of(ours.out(), fmt::format("[rank {}] of {} ", rank, rank));
    int compared = 0;
    for (const auto& [name, value] : theirs) {
      if (!is_launchers(name) || differs_by_design(name)) continue;
      EXPECT_EQ(env[name], value) << name << " of rank " << rank;
      ++compared;
    }
    EXPECT_GE(compared, 12);
  }
}

TEST(LauncherEnvironment, RanksReadNothingFromTheTerminal) {
  LauncherProcess launcher(shell_ranks(2, "readlink /proc/$$/fd/0"));
  ASSERT_EQ(launcher.finish(), 0) << launcher.err();
  launcher.wait_for("/dev/null\n", 2);
}

TEST(LauncherEnvironment, ABusyPortIsReportedBeforeAnythingStarts) {
  const ReservedPort port;
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port.port());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  LauncherProcess launcher(shell_ranks(1, "echo started", {"--master-port", std::to_string(port.port())}));
  EXPECT_EQ(launcher.finish(), 1);
  EXPECT_EQ(launcher.out(), "");
  EXPECT_EQ(lines_of(launcher.err()).size(), 1u) << launcher.err();
  EXPECT_THAT(launcher.err(), HasSubstr(fmt::format("TCP port {}", port.port())));
}

TEST(LauncherEnvironment, AGivenPortCanBeServed) {
  LauncherProcess launcher(
      {"run", "--nproc-per-node", "2", "--master-port", free_port(), LAUNCHER_RANK_PROGRAM, "meet"});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
}

TEST(LauncherEnvironment, TwentyLaunchesAtTheSameTimeDoNotClash) {
  std::vector<std::unique_ptr<LauncherProcess>> launches;
  const std::string script = fmt::format("echo port $MASTER_PORT; exec {} meet", LAUNCHER_RANK_PROGRAM);
  for (int i = 0; i < 20; ++i) launches.push_back(std::make_unique<LauncherProcess>(shell_ranks(2, script)));
  for (auto& launch : launches) EXPECT_EQ(launch->finish(), 0) << launch->out() << launch->err();
}

}  // namespace
}  // namespace lockstep::testing
