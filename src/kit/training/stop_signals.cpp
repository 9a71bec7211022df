// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

#include <lockstep/base/world.h>
#include <lockstep/training/stop_signals.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/recorder_signal.h"
#include "metrics/sum_over_ranks.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;
// Until then a signal is the one that has come before, sent by another process.
constexpr std::int64_t kSameSignal = 1 * kNanoseconds;

struct HandledSignal {
  struct sigaction former {};
  std::atomic<std::int64_t> since{0};  // when the signal came first, on the monotonic clock; 0: it has not
};

// A handler can reach nothing but globals.
std::array<HandledSignal, NSIG> handled_signals;
std::atomic<int> noted_signal{0};
std::atomic<bool> is_in_use{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

HandledSignal& handled(int signal) { return handled_signals.at(static_cast<std::size_t>(signal)); }

std::int64_t monotonic_time() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kNanoseconds + time.tv_nsec;
}

// Calls nothing that is not async-signal-safe.
void note_stop_signal(int signal) {
  const int interrupted_errno = errno;  // of the code that the signal interrupts
  auto& known = handled(signal);
  std::int64_t since = 0;
  if (known.since.compare_exchange_strong(since, monotonic_time())) {
    noted_signal = signal;
  } else if (monotonic_time() - since >= kSameSignal) {
    ::sigaction(signal, &known.former, nullptr);
    ::raise(signal);  // takes effect when this handler returns
  }
  errno = interrupted_errno;
}

void handle_signal(int signal) {
  if (comm::is_recorder_signal(signal))
    throw_error<ArgumentError>(
        "stop signals: LOCKSTEP_RECORDER_SIGNAL names signal {}, which writes recorder files; set it to the other one of "
        "SIGUSR1 and SIGUSR2, or give stop signals without this one",
        signal);
  struct sigaction action {};
  action.sa_handler = note_stop_signal;
  action.sa_flags = SA_RESTART;
  struct sigaction former {};
  int error = ::sigaction(signal, nullptr, &former) == 0 ? 0 : errno;
  if (error == 0) {
    // It is ours in a list with duplicates, and after a StopSignals that has stopped.
    if (former.sa_handler != note_stop_signal) handled(signal).former = former;
    handled(signal).since = 0;
    if (::sigaction(signal, &action, nullptr) != 0) error = errno;
  }
  if (error != 0)
    throw_error<ArgumentError>(
        "stop signals: signal {} cannot be handled: {}; give signals such as SIGTERM, SIGUSR1 and SIGINT",
        signal, errno_text(error));
}

void claim_handlers() {
  if (is_thread_rank())
    throw ArgumentError(
        "StopSignals: a rank of spawn_threads() shares the signals of the process with the other ranks; use ranks that "
        "are processes");
  if (is_in_use.exchange(true))
    throw ArgumentError(
        "stop signals: another StopSignals or fit() of a Trainer handles signals in this process; end it before, or "
        "give this one no signals");
  noted_signal = 0;
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals) {
  if (signals.empty()) return;
  claim_handlers();
  try {
    for (const int signal : signals) {
      handle_signal(signal);
      signals_.push_back(signal);
    }
  } catch (...) {
    restore();
    throw;
  }
}

StopSignals::~StopSignals() {
  if (signals_.empty()) return;
  if (stops_) {
    is_in_use = false;  // the handlers stay: the same signal may still come from elsewhere
    return;
  }
  restore();
  const int signal = noted_signal.exchange(0);
  if (signal != 0) ::raise(signal);
}

void StopSignals::restore() noexcept {
  for (const int signal : signals_) ::sigaction(signal, &handled(signal).former, nullptr);
  is_in_use = false;
}

bool StopSignals::should_stop(const std::optional<ProcessGroup>& process_group, std::source_location where) {
  const comm::CallSite site(where, "agreement on stop signals");
  const auto group = runtime::group_or_default(process_group, "StopSignals::should_stop()");
  if (metrics::sum_over_ranks({arrived() ? 1.0 : 0.0}, group).front() > 0) stop();
  return stops_;
}

bool StopSignals::arrived() const { return stops_ || (!signals_.empty() && noted_signal != 0); }

}  // namespace lockstep
