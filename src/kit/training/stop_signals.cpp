// SPDX-License-Identifier: BSD-3-Clause
#include "training/stop_signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "base/throw_error.h"

namespace lockstep::training {
namespace {

// A handler can reach nothing but globals.
std::atomic<int> noted_signal{0};
std::atomic<bool> is_taken{false};
static_assert(std::atomic<int>::is_always_lock_free);
std::array<struct sigaction, NSIG> former_actions;

void note_stop_signal(int signal) {
  noted_signal = signal;
  ::sigaction(signal, &former_actions.at(static_cast<std::size_t>(signal)), nullptr);
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals) {
  noted_signal = 0;
  is_taken = false;
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_handler = note_stop_signal;
    action.sa_flags = SA_RESTART;
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0)
      former_actions.at(static_cast<std::size_t>(signal)) = before;
    if (::sigaction(signal, &action, nullptr) != 0) {
      restore();
      throw_error<ArgumentError>("Trainer: signal {} of stop_signals cannot be handled: {}", signal,
                                 errno_text(errno));
    }
    signals_.push_back(signal);
  }
}

StopSignals::~StopSignals() {
  restore();
  const int signal = noted_signal.exchange(0);
  if (signal != 0 && !is_taken) ::raise(signal);
}

void StopSignals::restore() noexcept {
  for (const int signal : signals_)
    ::sigaction(signal, &former_actions.at(static_cast<std::size_t>(signal)), nullptr);
}

bool StopSignals::arrived() { return noted_signal != 0; }

void StopSignals::take() { is_taken = true; }

}  // namespace lockstep::training
