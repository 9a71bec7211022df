// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace lockstep::shm {

// Something that goes on between ranks and is moved forward, bit by bit, by whoever holds the engine's lock.
class Call {
 public:
  Call() = default;
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Does what can be done without waiting. True once nothing is left to do.
  virtual bool advance() = 0;
  // The ranks that it waits for, as far as they are known.
  virtual std::vector<int> awaited() const = 0;
  // "all_reduce of 12 x f32 (sum)"
  virtual std::string describe() const = 0;

  bool finished() const { return finished_.load(std::memory_order_acquire); }
  void set_finished() { finished_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> finished_{false};
};

}  // namespace lockstep::shm
