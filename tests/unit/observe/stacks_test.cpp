// SPDX-License-Identifier: BSD-3-Clause
#include "observe/stacks.h"

#include <algorithm>
#include <csignal>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/liveness.h"
#include "observe/processes.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using ::testing::Truly;

[[gnu::noinline]] void wait_in_own_function() {
  while (true) ::pause();
}

[[gnu::noinline]] void wait_in_a_second_thread() {
  while (true) ::pause();
}

// The thread does not stop before the child ends, as after vfork().
void start_child_and_wait() {
  if (::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr) != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(60);
  while (true) ::pause();
}

// A process with a thread, once both are in their functions.
class Stuck {
 public:
  explicit Stuck(bool is_traced = false, void (*wait)() = &wait_in_a_second_thread) {
    int ends[2]{};
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);
      if (is_traced) ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      std::thread second([&] {
        (void)!::write(ends[1], "2", 1);
        wait();
      });
      (void)!::write(ends[1], "1", 1);
      wait_in_own_function();
    }
    char byte = 0;
    for (int thread = 0; thread < 2; ++thread) (void)!::read(ends[0], &byte, 1);
    ::close(ends[0]);
    ::close(ends[1]);
    wait_for('S');
    wait_until_no_thread_runs();
  }
  ~Stuck() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Stuck(const Stuck&) = delete;
  Stuck& operator=(const Stuck&) = delete;

  int pid() const { return pid_; }
  char state() const { return state_letter(pid_); }
  void wait_for(char state) const {
    const Deadline deadline(std::chrono::seconds(30));
    while (this->state() != state && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(this->state(), state);
  }

 private:
  // A thread that has written its byte can still be on its way to its function.
  void wait_until_no_thread_runs() const {
    const auto runs = [](int thread) { return state_letter(thread) == 'R'; };
    const Deadline deadline(std::chrono::seconds(30));
    while (std::ranges::any_of(observe::threads_of(pid_), runs) && !deadline.expired())
      std::this_thread::yield();
    EXPECT_THAT(observe::threads_of(pid_), Not(Contains(Truly(runs))));
  }

  pid_t pid_ = 0;
};

void expect_both_stacks(const std::vector<observe::ThreadStack>& stacks) {
  ASSERT_EQ(stacks.size(), 2U);
  EXPECT_THAT(stacks[0].frames, Contains(HasSubstr("wait_in_own_function()")));
  EXPECT_THAT(stacks[1].frames, Contains(HasSubstr("wait_in_a_second_thread()")));
}

TEST(Stacks, ShowTheFunctionsOfARunningProcess) {
  const Stuck process;
  expect_both_stacks(observe::stacks_of(process.pid()));
  process.wait_for('S');
  expect_both_stacks(observe::stacks_of(process.pid()));
}

TEST(Stacks, AStoppedProcessStaysStopped) {
  const Stuck process;
  ::kill(process.pid(), SIGSTOP);
  process.wait_for('T');
  expect_both_stacks(observe::stacks_of(process.pid()));
  process.wait_for('T');
  ::kill(process.pid(), SIGCONT);
  process.wait_for('S');
}

TEST(Stacks, AThreadThatDoesNotStopIsNotHeld) {
  const Stuck process(/*is_traced=*/false, &start_child_and_wait);
  const Deadline limit(std::chrono::seconds(30));
  while (!observe::is_in_kernel_wait(process.pid()) && !limit.expired()) std::this_thread::yield();
  EXPECT_THAT([&] { (void)observe::stacks_of(process.pid()); },
              ThrowsMessage<Error>(HasSubstr("does not stop within")));
  const Deadline deadline(std::chrono::seconds(30));
  const auto is_traced = [](int thread) { return observe::status_number(thread, "TracerPid:") != 0; };
  while (std::ranges::any_of(observe::threads_of(process.pid()), is_traced) && !deadline.expired())
    std::this_thread::yield();
  EXPECT_THAT(observe::threads_of(process.pid()), Not(Contains(Truly(is_traced))));
  process.wait_for('S');
}

TEST(Stacks, NameTheDebuggerThatTracesTheProcess) {
  const Stuck process(/*is_traced=*/true);
  EXPECT_THAT([&] { (void)observe::stacks_of(process.pid()); },
              ThrowsMessage<Error>(HasSubstr("process " + std::to_string(::getpid()) + " traces it")));
}

}  // namespace
}  // namespace lockstep::testing
