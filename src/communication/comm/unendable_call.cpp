// SPDX-License-Identifier: BSD-3-Clause
#include "comm/unendable_call.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "comm/failure.h"
#include "comm/peer_check.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeToThrow = 500ms;  // of a wait for a call that can be ended, after SIGTERM
constexpr auto kTimeToDie = 100ms;    // of the rank because of which SIGTERM was sent

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

// Throws what rethrow_as_ours() makes of `error`.
template <class Failure>
[[noreturn]] void fail(const GroupState& group, const CallRecord& call, const std::string& reason) {
  rethrow_as_ours(std::make_exception_ptr(Failure(reason)), group, call);
}

// The calls of this process, and the thread that watches them.
class Watch {
 public:
  static Watch& get() {
    static Watch watch;
    return watch;
  }

  void add(const UnendableCall* call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }
  void remove(const UnendableCall* call) {
    const std::lock_guard lock(mutex_);
    calls_.erase(std::ranges::find(calls_, call));
  }

 private:
  Watch() {
    handle_termination();
    thread_ = std::jthread([this](const std::stop_token& stop) {
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
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait_for(lock, stop, time, [] { return false; });
  }

  void look(const std::stop_token& stop) {
    if (terminated) terminate(stop);
    // The calls cannot return meanwhile, so what they refer to stays.
    const std::lock_guard lock(mutex_);
    try {
      for (const auto* call : calls_) call->check();
    } catch (const std::exception& error) {
      end_process(error);
    }
  }

  void terminate(const std::stop_token& stop) {
    {
      const std::lock_guard lock(mutex_);
      if (!calls_.empty()) {
        try {
          calls_.front()->throw_terminated();
        } catch (const std::exception& error) {
          end_process(error);
        }
      }
    }
    sleep(stop, kTimeToThrow);
    if (stop.stop_requested()) return;  // the program has ended by itself
    std::signal(SIGTERM, SIG_DFL);
    ::kill(::getpid(), SIGTERM);
  }

  [[noreturn]] static void end_process(const std::exception& error) {
    log(LogLevel::error, error.what());
    ::_exit(kLostExitCode);
  }

  std::mutex mutex_;
  std::vector<const UnendableCall*> calls_;
  std::jthread thread_;
};

}  // namespace

UnendableCall::UnendableCall(const GroupState& group, const CallRecord& call,
                             std::chrono::milliseconds timeout)
    : group_(group), call_(call), timeout_(timeout == kNoTimeout ? group.info().timeout : timeout) {
  Watch::get().add(this);
}

UnendableCall::~UnendableCall() { Watch::get().remove(this); }

void UnendableCall::check() const {
  throw_if_refused(group_, call_);
  try {
    check_peers(group_.node_group().get());
  } catch (const Error&) {
    rethrow_as_ours(std::current_exception(), group_, call_);
  }
  if (Clock::now() - call_.issued_at < timeout_) return;
  fail<TimeoutError>(group_, call_, fmt::format("it has not ended after {} ms", timeout_.count()));
}

void UnendableCall::throw_terminated() const {
  fail<PeerLost>(group_, call_, reason_of_termination(group_.node_group().get()));
}

void watch_termination() { Watch::get(); }

bool is_terminated() { return terminated; }

std::string reason_of_termination(const node::NodeGroup* others) {
  const Deadline deadline(kTimeToDie);
  while (others != nullptr) {
    if (const int dead = others->find_dead(); dead >= 0) return others->name_of(dead) + " died";
    if (deadline.expired()) break;
    std::this_thread::sleep_for(1ms);
  }
  return "SIGTERM came, which mpirun sends to all ranks when one of them fails";
}

}  // namespace lockstep::comm
