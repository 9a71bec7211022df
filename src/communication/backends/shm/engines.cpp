// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/engines.h"

#include <new>
#include <pthread.h>

#include "backends/shm/engine.h"

namespace lockstep::shm {

// Never destroyed: a thread may wait for a call while the process ends.
Engines& Engines::of_process() {
  static Engines& instance = *new Engines();
  // Another thread of the parent may have had the mutex, so it is made anew too.
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { new (&of_process()) Engines(); });
  return instance;
}

void Engines::add(Engine& engine) {
  const WriterLock lock(mutex_);
  all_.push_back(&engine);
  count_ = all_.size();
}

void Engines::remove(Engine& engine) {
  const WriterLock lock(mutex_);
  std::erase(all_, &engine);
  count_ = all_.size();
}

bool Engines::advance_others(const Engine& self) {
  if (count_.load(std::memory_order_relaxed) < 2) return false;
  const ReaderLock lock(mutex_);
  bool busy = false;
  for (auto* engine : all_) {
    if (engine == &self || engine->communicator().owner() != self.communicator().owner() || engine->is_idle())
      continue;
    busy = true;
    engine->try_advance();
  }
  return busy;
}

}  // namespace lockstep::shm
