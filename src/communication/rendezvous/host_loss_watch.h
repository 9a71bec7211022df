// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/run_memory.h"

namespace lockstep::rendezvous {

// Calls `on_loss` in a thread of its own when the launcher says that the ranks of another host are lost. The kernel tells a
// rank of the end of a peer, but not of a host without power or network. Calls over shm end then; those over Gloo, whose
// abort() does nothing, wait until their timeout.
class HostLossWatch {
 public:
  // `on_loss` must not throw.
  HostLossWatch(std::shared_ptr<const RunMemory> memory, std::function<void()> on_loss);
  ~HostLossWatch();
  HostLossWatch(const HostLossWatch&) = delete;
  HostLossWatch& operator=(const HostLossWatch&) = delete;

 private:
  void watch();

  std::shared_ptr<const RunMemory> memory_;
  std::function<void()> on_loss_;
  std::uint32_t seen_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace lockstep::rendezvous
