// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --hosts`, with a program in place of ssh, and with ssh where this machine has its server.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sockets.h"
#include "launch/host_control.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using HostWords = std::vector<std::string>;

// Found first on PATH. A host "dead" cannot be reached.
class LauncherHosts : public ::testing::Test {
 protected:
  LauncherHosts() {
    std::ofstream(folder_.file("ssh")) << fmt::format(
        "#!/bin/sh\necho \"$@\" >> {}/commands\nwhile [ \"$1\" = -o ]; do shift 2; done\n"
        "[ \"$1\" = dead ] && {{ echo 'Connection timed out' >&2; exit 255; }}\n"
        "export ON_HOST=$1; shift; exec sh -c \"$*\"\n",
        folder_.path().string());
    fs::permissions(folder_.file("ssh"), fs::perms::owner_all);
  }

  LauncherProcess run(const std::string& hosts, const std::string& script, HostWords more = {}) const {
    HostWords words{"run", "--hosts", hosts, "--master-port", free_port()};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    const std::string path = std::getenv("PATH");
    return LauncherProcess(words, {.env = {{"PATH", folder_.path().string() + ":" + path},
                                           {"LOCKSTEP_SECRET", "the secret of a test"},
                                           {"PET_NPROC_PER_NODE", "2"}}});
  }

  std::string commands() const {
    std::ifstream file(folder_.file("commands"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempFolder folder_;
};

constexpr const char* kTwoHosts = "127.0.0.1,me@127.0.0.2:1";

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(LauncherHosts, RunOneJob) {
  auto launcher =
      run(kTwoHosts,
          "echo $RANK/$WORLD_SIZE node $GROUP_RANK on $ON_HOST: $FIRST $SECOND [$LOCKSTEP_SECRET] $PWD",
          {"-x", "FIRST=1,PATH", "--export", "SECOND=two"});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  const auto rest = " 1 two [] " + fs::current_path().string();
  EXPECT_THAT(launcher.out(), AllOf(HasSubstr("0/3 node 0 on 127.0.0.1:" + rest),
                                    HasSubstr("1/3 node 0 on 127.0.0.1:" + rest),
                                    HasSubstr("2/3 node 1 on me@127.0.0.2:" + rest)));
  EXPECT_THAT(commands(), AllOf(HasSubstr("BatchMode=yes"), HasSubstr("127.0.0.2 '"), HasSubstr("' node"),
                                Not(HasSubstr("secret"))));
}

TEST_F(LauncherHosts, ReportAFailureOnceAndExitLikeTheRank) {
  auto launcher = run(kTwoHosts, "test $RANK = 2 && { echo bad luck >&2; exit 7; }; exec sleep 1000");
  EXPECT_EQ(launcher.finish(), 7);
  EXPECT_EQ(count_of(launcher.err(), "rank 2 failed first: it exited with code 7"), 1) << launcher.err();
  launcher.wait_for_no_family();
}

TEST_F(LauncherHosts, RestartTogether) {
  auto launcher = run(kTwoHosts, "test $TORCHELASTIC_RESTART_COUNT-$RANK = 0-2 && exit 7; exit 0",
                      {"--max-restarts", "1"});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
}

TEST_F(LauncherHosts, EndWhenOneCannotBeReached) {
  auto launcher = run("127.0.0.1,dead", "exec sleep 1000");
  EXPECT_EQ(launcher.finish(), 255);
  EXPECT_THAT(lines_of(launcher.err()).back(), AllOf(HasSubstr("host dead"), HasSubstr("could not connect")));
  launcher.wait_for_no_family();
}

TEST_F(LauncherHosts, EndWhenOneHasNoLockstep) {
  auto launcher = run(kTwoHosts, "exec sleep 1000", {"--lockstep", "/nonexistent/lockstep"});
  EXPECT_EQ(launcher.finish(), 127);
  EXPECT_THAT(lines_of(launcher.err()).back(), HasSubstr("set --lockstep"));
}

// ssh and a shell have the same codes for a connection and a program that failed.
TEST_F(LauncherHosts, DoNotTakeTheExitCodeOfARankForThatOfSsh) {
  for (const int code : {127, 255}) {
    auto launcher = run(kTwoHosts, fmt::format("test $RANK = 2 && exit {}; exec sleep 1000", code));
    EXPECT_EQ(launcher.finish(), code) << launcher.err();
    EXPECT_THAT(launcher.err(),
                AllOf(HasSubstr(fmt::format("rank 2 failed first: it exited with code {}", code)),
                      Not(HasSubstr("could not connect")), Not(HasSubstr("--lockstep"))));
    EXPECT_EQ(launcher.out(), "");
  }
}

TEST_F(LauncherHosts, EndWhenTheLauncherOfOneIsKilled) {
  const auto go = folder_.file("go");
  auto launcher = run(
      kTwoHosts,
      fmt::format("echo up; test $RANK = 2 && {{ while ! test -e {}; do sleep 0.01; done; kill -9 $PPID; }};"
                  "exec sleep 1000",
                  go));
  launcher.wait_for("up", 3);
  std::ofstream(go) << "";
  EXPECT_NE(launcher.finish(), 0);
  EXPECT_THAT(launcher.err(), HasSubstr("was lost"));
  launcher.wait_for_no_family();
}

TEST_F(LauncherHosts, ForwardSignals) {
  // A shell that starts processes in a loop may lose a signal: dash ignores those that arrive during vfork().
  auto launcher = run(kTwoHosts, "trap 'echo asked' INT; sleep 1000 & echo up; while :; do wait; done",
                      {"--grace-period", "1000"});
  launcher.wait_for("up", 3);
  launcher.send(SIGINT);
  launcher.wait_for("asked", 3);
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.finish(), 128 + SIGINT);
  EXPECT_THAT(launcher.err(), HasSubstr("SIGINT again: killing all ranks"));
  launcher.wait_for_no_family();
}

// From a host that has no rank, through the coordinator and both launchers.
TEST_F(LauncherHosts, ShowTheirRanksToTheStarter) {
  auto launcher = run(kTwoHosts, "echo up; exec sleep 1000");
  launcher.wait_for("up", 3);
  LauncherProcess top({"top", std::to_string(launcher.pid()), "--once", "--hosts"});
  EXPECT_EQ(top.finish(), 0) << top.err();
  EXPECT_EQ(count_of(top.out(), ": its ranks publish nothing yet"), 2) << top.out();
}

TEST_F(LauncherHosts, ForwardWarningsAndEndLikeInterruptedRanks) {
  auto launcher = run(kTwoHosts, fmt::format("exec {} save-on-signal", LAUNCHER_RANK_PROGRAM));
  launcher.wait_for(" of ", 3);
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.finish(), 75) << launcher.err();
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("SIGUSR1: forwarded to the ranks"),
                                    HasSubstr("was interrupted"), Not(HasSubstr("its launcher exited"))));
  launcher.wait_for_no_family();
}

TEST_F(LauncherHosts, LeaveNothingWhenTheStarterIsKilled) {
  auto launcher = run(kTwoHosts, "setsid sleep 1000 & echo up; exec sleep 1000");
  launcher.wait_for("up", 3);
  launcher.send(SIGKILL);
  launcher.finish();
  launcher.wait_for_no_family();
}

TEST_F(LauncherHosts, RejectContradictions) {
  for (const HostWords& more :
       {HostWords{"--nnodes", "2"}, HostWords{"--rdzv-backend", "c10d"},
        HostWords{"--export", "NO_SUCH_VARIABLE"}, HostWords{"--standalone"}, HostWords{"--tee", "9"}}) {
    auto launcher = run(kTwoHosts, "true", more);
    EXPECT_EQ(launcher.finish(), 2) << launcher.err();
    EXPECT_EQ(lines_of(launcher.err()).size(), 1U) << launcher.err();
  }
}

TEST_F(LauncherHosts, CannotGetAnArgumentThatIsNotUtf8) {
  auto launcher = run(kTwoHosts, "echo caf\xe9");
  EXPECT_EQ(launcher.finish(), 2);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr(R"(the argument "echo caf\ufffd")"), Not(HasSubstr("json"))));
}

// The launcher of one host, whose stdin ends or has a line for SIGTERM.
std::string end_of_node(const std::string& last_words) {
  const TempFolder folder;
  const auto order =
      launch::encode(launch::NodeOrder{.arguments = {"run", "--host-index", "0", "--hosts", "a", "--",
                                                     "/bin/sh", "-c", "touch up; exec sleep 1000"},
                                       .environment = {{"LOCKSTEP_SECRET", "0123456789abcdef"}},
                                       .folder = folder.path().string()});
  LauncherProcess shell({"-c", fmt::format("{{ echo '{}'; while ! test -e {}; do sleep 0.01; done; {}; }} |"
                                           "{{ {} node; echo code $?; }}",
                                           order, folder.file("up"), last_words, LOCKSTEP_PROGRAM)},
                        {.program = "/bin/sh"});
  shell.wait_for("code ");
  return shell.out();
}

TEST(LauncherNode, EndsWithItsConnectionAndOnItsSignals) {
  EXPECT_EQ(end_of_node("true"), "[lockstep node]\ncode 129\n");
  EXPECT_EQ(end_of_node("echo 15; exec sleep 1000"), "[lockstep node]\ncode 143\n");
}

LauncherProcess pod(std::map<std::string, std::string> env, const std::string& script) {
  env.insert({{"LOCKSTEP_SECRET", "the secret of a test"}, {"PET_MASTER_ADDR", "127.0.0.1"}});
  return LauncherProcess({"run", "--", "/bin/sh", "-c", script}, {.env = env});
}

constexpr const char* kSayRank = "echo $RANK/$WORLD_SIZE node $GROUP_RANK";

// As the training operator of Kubeflow sets them; RANK and WORLD_SIZE count pods.
TEST(LauncherPods, OfAPyTorchJob) {
  const auto port = free_port();
  const auto variables = [&](const std::string& rank) {
    return std::map<std::string, std::string>{
        {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port},      {"RANK", rank},
        {"WORLD_SIZE", "2"},          {"PET_MASTER_PORT", port},  {"PET_NODE_RANK", rank},
        {"PET_NNODES", "2"},          {"PET_NPROC_PER_NODE", "2"}};
  };
  auto first = pod(variables("0"), kSayRank);
  auto second = pod(variables("1"), kSayRank);
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_THAT(first.out(), AllOf(HasSubstr("0/4 node 0"), HasSubstr("1/4 node 0")));
  EXPECT_THAT(second.out(), AllOf(HasSubstr("2/4 node 1"), HasSubstr("3/4 node 1")));
}

TEST(LauncherPods, OfAnIndexedJob) {
  const auto port = free_port();
  const auto variables = [&](const std::string& index) {
    return std::map<std::string, std::string>{
        {"JOB_COMPLETION_INDEX", index}, {"PET_MASTER_PORT", port}, {"PET_NNODES", "2"}};
  };
  auto second = pod(variables("1"), kSayRank);
  auto first = pod(variables("0"), kSayRank);
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_THAT(first.out(), HasSubstr("0/2 node 0"));
  EXPECT_THAT(second.out(), HasSubstr("1/2 node 1"));
}

// A server of ssh for this user, on a free port of the loopback interface.
class RealSsh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kServer)) GTEST_SKIP() << "this machine has no sshd (Debian: openssh-server)";
    shell_out("ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f user");
    std::ofstream(folder_.file("config")) << fmt::format(
        "Port {1}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {0}/host\n"
        "AuthorizedKeysFile {0}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        "PermitRootLogin yes\n",
        folder_.path().string(), port_);
    // As root it wants the folder /run/sshd, which the service of the system makes.
    const auto serve = fmt::format("exec {} -D -e -f {}", kServer, folder_.file("config"));
    const auto as_root = "mount -t tmpfs none /run && mkdir /run/sshd && " + serve;
    server_.emplace(
        ::geteuid() == 0 ? HostWords{"-m", "sh", "-c", as_root} : HostWords{"--", "sh", "-c", serve},
        LauncherProcess::Options{.program = "/usr/bin/unshare"});
    const Deadline deadline(std::chrono::seconds(60));
    while (!connect_to(resolve_now("127.0.0.2", port_).addresses.front(), deadline) && !deadline.expired()) {
      ::usleep(10'000);
    }
  }

  void shell_out(const std::string& command) const {
    const auto all = fmt::format("cd {} && {}", folder_.path().string(), command);
    ASSERT_EQ(std::system(all.c_str()), 0) << command;
  }

  LauncherProcess run(const std::string& script) const {
    const auto ssh = fmt::format(
        "ssh -i {0}/user -p {1} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={0}/known "
        "-o LogLevel=ERROR",
        folder_.path().string(), port_);
    return LauncherProcess({"run", "--hosts", "127.0.0.1,127.0.0.2:2", "--master-port", free_port(), "--ssh",
                            ssh, "--", "/bin/sh", "-c", script});
  }

  // `pids`: a file to which the ranks wrote theirs. Processes under sshd are not in the launcher's family.
  void wait_until_ended(const std::string& pids) const {
    std::ifstream file(pids);
    const std::vector<pid_t> all{std::istream_iterator<pid_t>(file), {}};
    EXPECT_EQ(all.size(), 3U);
    const Deadline deadline(std::chrono::seconds(30));
    for (const auto pid : all) {
      while (::kill(pid, 0) == 0 && !deadline.expired()) ::usleep(10'000);
      EXPECT_NE(::kill(pid, 0), 0) << pid;
    }
  }

  static constexpr const char* kServer = "/usr/sbin/sshd";
  TempFolder folder_;
  const int port_ = std::stoi(free_port());
  std::optional<LauncherProcess> server_;
};

TEST_F(RealSsh, RunsOneJobAndLeavesNothing) {
  auto job = run("echo $RANK/$WORLD_SIZE; exit 0");
  EXPECT_EQ(job.finish(), 0) << job.err();
  for (const auto* rank : {"0/3", "1/3", "2/3"}) EXPECT_THAT(job.out(), HasSubstr(rank));

  for (const int signal : {SIGINT, SIGKILL}) {
    const auto pids = folder_.file(fmt::format("pids{}", signal));
    auto endless = run(fmt::format("echo $$ >> {}; echo up; exec sleep 1000", pids));
    endless.wait_for("up", 3);
    endless.send(signal);
    EXPECT_EQ(endless.finish(), signal == SIGINT ? 130 : -SIGKILL);
    wait_until_ended(pids);
  }
}

// The shell of one host dies without a word to the others.
TEST_F(RealSsh, EndsTheRunWhenAConnectionIsCut) {
  const auto pids = folder_.file("pids");
  auto job = run(fmt::format("echo $$ >> {}; echo up; exec sleep 1000", pids));
  job.wait_for("up", 3);
  // A remote shell is a child of the starter's guard, as every member of the family but these two.
  for (const auto pid : job.family()) {
    std::ifstream name(fmt::format("/proc/{}/comm", pid));
    std::string comm;
    if (name >> comm && comm == "ssh") {
      ::kill(pid, SIGKILL);
      break;
    }
  }
  EXPECT_EQ(job.finish(), 137) << job.err();
  wait_until_ended(pids);
}

}  // namespace
}  // namespace lockstep::testing
