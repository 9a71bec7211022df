// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <vector>

namespace lockstep::shm {

// A collective or a message under way. Whoever holds the engine's lock advances it.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Does what can be done without waiting. True once nothing is left to do.
  virtual bool advance() = 0;
  // The ranks that it waits for, as far as they are known.
  virtual std::vector<int> awaited() const = 0;

  bool finished() const { return finished_.load(std::memory_order_acquire); }
  virtual void set_finished() { finished_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> finished_{false};
};

}  // namespace lockstep::shm
