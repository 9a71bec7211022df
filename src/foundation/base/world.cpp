// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>

#include <lockstep/base/world.h>

namespace lockstep {
namespace {

struct Slot {
  std::mutex mutex;
  World world;
};

Slot& slot() {
  static Slot instance;
  return instance;
}

std::atomic<bool>& has_had_one() {
  static std::atomic<bool> set{false};
  return set;
}

std::optional<World>& thread_world() {
  thread_local std::optional<World> world;
  return world;
}

}  // namespace

World current_world() {
  if (thread_world()) return *thread_world();
  const std::lock_guard lock(slot().mutex);
  return slot().world;
}

void set_current_world(const World& world) {
  has_had_one() = true;
  const std::lock_guard lock(slot().mutex);
  slot().world = world;
}

void set_thread_world(const std::optional<World>& world) { thread_world() = world; }

bool has_had_world() { return thread_world() || has_had_one(); }

void forget_worlds() { has_had_one() = false; }

bool is_thread_rank() { return thread_world().has_value(); }

}  // namespace lockstep
