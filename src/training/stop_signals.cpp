// SPDX-License-Identifier: BSD-3-Clause
#include "training/stop_signals.h"

#include <atomic>
#include <cerrno>

#include "base/throw_error.h"

namespace lockstep::training {
namespace {

// A handler can reach nothing but a global.
std::atomic<bool> stop_signal_arrived{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void note_stop_signal(int) { stop_signal_arrived = true; }

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals) {
  stop_signal_arrived = false;
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_handler = note_stop_signal;
    action.sa_flags = SA_RESTART | SA_RESETHAND;
    struct sigaction before {};
    if (::sigaction(signal, &action, &before) != 0) {
      restore();
      throw_error<ArgumentError>("Trainer: signal {} of stop_signals cannot be handled: {}", signal,
                                 errno_text(errno));
    }
    former_.emplace_back(signal, before);
  }
}

StopSignals::~StopSignals() {
  restore();
  stop_signal_arrived = false;
}

void StopSignals::restore() noexcept {
  for (const auto& [signal, action] : former_) ::sigaction(signal, &action, nullptr);
}

bool StopSignals::arrived() { return stop_signal_arrived; }

}  // namespace lockstep::training
