// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/host_loss_watch.h"

#include <utility>

#include "base/limits.h"

namespace lockstep::rendezvous {
namespace {

// A thread that sleeps does not see the end of its object if that comes just before its sleep.
constexpr std::chrono::milliseconds kLongestNap{500};

}  // namespace

HostLossWatch::HostLossWatch(std::shared_ptr<const RunMemory> memory, std::function<void()> on_loss)
    : memory_(std::move(memory)),
      on_loss_(std::move(on_loss)),
      seen_(memory_->state().hosts_lost.load(std::memory_order_acquire)),
      thread_(start_thread<std::thread>("the watch of lost hosts", [this] { watch(); })) {}

HostLossWatch::~HostLossWatch() {
  is_over_ = true;
  futex_wake_all(memory_->state().hosts_lost);
  thread_.join();
}

void HostLossWatch::watch() {
  const auto& lost = memory_->state().hosts_lost;
  while (!is_over_) {
    const auto now = lost.load(std::memory_order_acquire);
    if (now == seen_) {
      futex_wait(lost, now, kLongestNap);
      continue;
    }
    seen_ = now;
    on_loss_();
  }
}

}  // namespace lockstep::rendezvous
