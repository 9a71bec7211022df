// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include <lockstep/base/mutex.h>

namespace lockstep::shm {

class Engine;

// The engines of this process, or of a thread that is a rank: a wait in one group also advances the calls of
// the other groups. Otherwise two ranks that wait for each other in different groups would deadlock. A forked
// child has none of its parent's. Safe from any thread.
class Engines {
 public:
  // The only one.
  static Engines& of_process();

  void add(Engine& engine);
  void remove(Engine& engine);
  // Advances the calls of all engines except `self`. Returns whether there were any.
  bool advance_others(const Engine& self);

 private:
  SharedMutex mutex_;
  std::vector<Engine*> all_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};
};

}  // namespace lockstep::shm
