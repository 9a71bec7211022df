// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/engines.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <pthread.h>
#include <shared_mutex>
#include <vector>

namespace lockstep::shm {
namespace {

struct Engines {
  std::shared_mutex mutex;
  std::vector<Engine*> all;
  std::atomic<std::size_t> count{0};
};

Engines& engines();

// Another thread may have had the mutex, so it is made anew too.
void forget_engines() { new (&engines()) Engines(); }

// Never destroyed: a thread may wait for a call while the process ends.
Engines& engines() {
  static Engines& instance = *new Engines();
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, forget_engines);
  return instance;
}

}  // namespace

void add_engine(Engine& engine) {
  const std::unique_lock lock(engines().mutex);
  engines().all.push_back(&engine);
  engines().count = engines().all.size();
}

void remove_engine(Engine& engine) {
  const std::unique_lock lock(engines().mutex);
  std::erase(engines().all, &engine);
  engines().count = engines().all.size();
}

bool advance_others(const Engine& self) {
  if (engines().count.load(std::memory_order_relaxed) < 2) return false;
  const std::shared_lock lock(engines().mutex);
  bool busy = false;
  for (auto* engine : engines().all) {
    if (engine == &self || engine->communicator().owner() != self.communicator().owner() || engine->is_idle())
      continue;
    busy = true;
    engine->try_advance();
  }
  return busy;
}

}  // namespace lockstep::shm
