// SPDX-License-Identifier: BSD-3-Clause
#include "base/liveness.h"

#include <array>
#include <csignal>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "node/node_group.h"

namespace lockstep::comm {
namespace {

// A fork of the test that runs `body`, and is killed at the end.
class Forked {
 public:
  template <class Body>
  explicit Forked(Body body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(60);
    body();
    ::_exit(0);
  }
  ~Forked() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;
  int pid() const { return pid_; }

 private:
  pid_t pid_;
};

// A line of /proc/<pid>/stat up to the pending signals, and what follows them.
std::string stat_of(const std::string& name, unsigned flags, unsigned pending) {
  std::string line = fmt::format("4711 ({}) R 1 4711 4711 0 -1 {}", name, flags);
  for (int place = 10; place < 31; ++place) line += " 7";
  return line + fmt::format(" {} 0 0 0\n", pending);
}

TEST(Liveness, IsDetectedFromThreadFlagsAndPendingSignals) {
  constexpr unsigned kPlain = 0x400040;
  EXPECT_FALSE(is_thread_exiting(stat_of("train", kPlain, 0)));
  EXPECT_FALSE(is_thread_exiting(stat_of("train", kPlain, 1U << (SIGTERM - 1)))) << "which it may catch";
  EXPECT_TRUE(is_thread_exiting(stat_of("train", kPlain, 1U << (SIGKILL - 1))));
  EXPECT_TRUE(is_thread_exiting(stat_of("train", kPlain | 0x4, 0))) << "in exit()";
  EXPECT_TRUE(is_thread_exiting(stat_of("train", kPlain | 0x400, 0))) << "ended by a signal";
  EXPECT_TRUE(is_thread_exiting(stat_of("a (b) R 1 1 1 1 1", kPlain, 1U << (SIGKILL - 1))));
  EXPECT_FALSE(is_thread_exiting(""));
  EXPECT_FALSE(is_thread_exiting("4711 (train) "));
}

TEST(Liveness, AProcessThatRunsSleepsOrIsStoppedLives) {
  EXPECT_FALSE(is_exiting(::getpid()));
  const Forked child([] { ::pause(); });
  EXPECT_FALSE(is_exiting(child.pid()));
  ::kill(child.pid(), SIGSTOP);
  ::waitpid(child.pid(), nullptr, WUNTRACED);
  EXPECT_FALSE(is_exiting(child.pid()));
}

TEST(Liveness, AKilledProcessIsDyingBeforeItIsReaped) {
  const Forked child([] { ::pause(); });
  ::kill(child.pid(), SIGKILL);
  siginfo_t how{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid()), &how, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_exiting(child.pid()));
}

// From the moment of the kill on, which is what it is good for: no wait in between. One look may fall just
// where the kernel turns the pending signal into a flag.
TEST(Liveness, IsDetectedImmediatelyAfterTheKill) {
  for (int round = 0; round < 20; ++round) {
    const Forked child([] {
      while (true) ::getppid();
    });
    ::kill(child.pid(), SIGKILL);
    EXPECT_TRUE(is_exiting(child.pid()) || is_exiting(child.pid()) || is_exiting(child.pid()))
        << "round " << round;
  }
}

TEST(Liveness, AProcessIsKnownByItsNumberAndStart) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const UniqueFd from(pipe[0]);
  const UniqueFd to(pipe[1]);
  auto identity = ProcessIdentity::own();
  EXPECT_FALSE(has_ended(identity));
  {
    const Forked child([&] {
      const auto start = ProcessIdentity::own().start;
      (void)!::write(to.get(), &start, sizeof(start));
      ::pause();
    });
    identity.pid = child.pid();
    ASSERT_EQ(::read(from.get(), &identity.start, sizeof(identity.start)), sizeof(identity.start));
    EXPECT_FALSE(has_ended(identity));
    auto former = identity;
    --former.start;
    EXPECT_TRUE(has_ended(former)) << "its pid belongs to another process now";
    ::kill(child.pid(), SIGKILL);
    siginfo_t how{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid()), &how, WEXITED | WNOWAIT), 0);
    EXPECT_TRUE(has_ended(identity));
  }
  EXPECT_TRUE(has_ended(identity)) << "it has been reaped";
  identity.space += "1";
  EXPECT_FALSE(has_ended(identity)) << "it cannot be seen from here";
}

TEST(Liveness, AProcessWhoseMainThreadHasEndedLives) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const UniqueFd from(pipe[0]);
  UniqueFd to(pipe[1]);
  const Forked child([&] {
    const auto main_thread = ::pthread_self();
    std::thread([&to, main_thread] {
      ::pthread_join(main_thread, nullptr);
      (void)!::write(to.get(), "x", 1);
      ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);  // of this thread alone, without unwinding
  });
  to.reset();
  char told = 0;
  ASSERT_EQ(::read(from.get(), &told, 1), 1);
  EXPECT_FALSE(is_exiting(child.pid()));
}

TEST(Liveness, ThePidOfAPidfd) {
  const Forked child([] { ::pause(); });
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid(), 0)));
  EXPECT_EQ(process_of_pidfd(fd.get()), child.pid());
  const UniqueFd other(::dup(STDIN_FILENO));
  EXPECT_EQ(process_of_pidfd(other.get()), 0) << "no pidfd";
}

// Its pidfd is not readable yet.
TEST(NodeGroup, FindsAProcessThatIsKilledAndHasNotEnded) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd output(ends[0]), input(ends[1]);
  const node::ExchangePoint point{
      .publish =
          [&](const std::string& name) {
            EXPECT_EQ(::write(input.get(), name.data(), name.size()), std::ssize(name));
          },
      .lookup =
          [&] {
            std::string name(4096, ' ');
            name.resize(static_cast<std::size_t>(::read(output.get(), name.data(), name.size())));
            return name;
          },
      .complain = [](const std::string&) {},
      .complaint = [] { return std::string(); }};
  const auto meet = [&](int rank) {
    return node::NodeGroup::meet(rank, 2, {}, "test", point, Deadline(std::chrono::seconds(60)));
  };
  const Forked other([&] {
    const auto group = meet(1);
    while (true) ::pause();
  });
  const auto group = meet(0);
  EXPECT_EQ(group->find_dead(), -1);
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, other.pid(), nullptr, PTRACE_O_TRACEEXIT), 0);
  ::kill(other.pid(), SIGKILL);
  ASSERT_EQ(::waitpid(other.pid(), nullptr, __WALL), other.pid());  // it stops before it ends
  EXPECT_EQ(group->find_dead(), 1);
  ::ptrace(PTRACE_DETACH, other.pid(), nullptr, nullptr);
}

}  // namespace
}  // namespace lockstep::comm
