// SPDX-License-Identifier: BSD-3-Clause
#include "comm/unendable_call.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <thread>
#include <unistd.h>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/mutex.h>

#include "base/limits.h"
#include "comm/peer_check.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeToThrow = 500ms;  // of a wait for a call that can be ended, after SIGTERM

std::atomic<bool> terminated{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

std::atomic<pid_t> watched{0};

void note_termination(int) {
  terminated = true;
  if (watched == ::getpid()) return;
  // A forked process has no watching thread.
  std::signal(SIGTERM, SIG_DFL);
  ::raise(SIGTERM);
}

// The calls of this process, and the thread that watches them.
class Watch {
 public:
  static Watch& get() {
    static Watch watch;
    return watch;
  }

  void add(const UnendableCall* call) {
    const MutexLock lock(mutex_);
    calls_.push_back(call);
  }
  void remove(const UnendableCall* call) {
    const MutexLock lock(mutex_);
    calls_.erase(std::ranges::find(calls_, call));
  }

 private:
  Watch() {
    handle_termination();
    thread_ = start_thread<std::jthread>("the check of other ranks", [this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        sleep(stop, kPeerCheckPeriod);
        look(stop);
      }
    });
  }

  static void handle_termination() {
    struct sigaction now {};
    ::sigaction(SIGTERM, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
    watched = ::getpid();
    struct sigaction own {};
    own.sa_handler = note_termination;
    own.sa_flags = SA_RESTART;
    ::sigaction(SIGTERM, &own, nullptr);
  }

  static void sleep(const std::stop_token& stop, std::chrono::milliseconds time) {
    Mutex mutex;
    MutexLock lock(mutex);
    std::condition_variable_any().wait_for(lock, stop, time, [] { return false; });
  }

  void look(const std::stop_token& stop) {
    const bool ends = terminated;
    {
      // The calls cannot return meanwhile, so what they refer to stays.
      const MutexLock lock(mutex_);
      try {
        for (const auto* call : calls_) call->check();
      } catch (const std::exception& error) {
        end_process(error);
      }
    }
    if (!ends) return;
    sleep(stop, kTimeToThrow);
    if (stop.stop_requested()) return;  // the program has ended by itself
    std::signal(SIGTERM, SIG_DFL);
    ::kill(::getpid(), SIGTERM);
  }

  [[noreturn]] static void end_process(const std::exception& error) {
    log(LogLevel::error, error.what());
    ::_exit(kLostExitCode);
  }

  Mutex mutex_;
  std::vector<const UnendableCall*> calls_ LOCKSTEP_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace

UnendableCall::UnendableCall(const GroupState& group, const CallRecord& call,
                             std::chrono::milliseconds timeout)
    : group_(group), call_(call), timeout_(timeout == kNoTimeout ? group.timeout() : timeout) {
  Watch::get().add(this);
}

UnendableCall::~UnendableCall() { Watch::get().remove(this); }

void UnendableCall::check() const {
  const auto late = late_error(Clock::now() - call_.issued_at >= timeout_, timeout_);
  const auto others = group_.node_group();
  try {
    NodeWait{others.get(), [] { return false; }, late, terminated}.check();
  } catch (const Error&) {
    rethrow_as_ours(std::current_exception(), group_, call_);
  }
}

void watch_termination() { Watch::get(); }

bool is_terminated() { return terminated; }

}  // namespace lockstep::comm
