// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include <lockstep/base/mutex.h>

#include "base/launched_rank.h"
#include "base/process_state.h"

namespace lockstep {
namespace {

Mutex world_mutex;
World process_world LOCKSTEP_GUARDED_BY(world_mutex);
// The worlds that this run had before ranks were lost.
std::vector<World> larger_worlds LOCKSTEP_GUARDED_BY(world_mutex);
std::atomic<bool> has_had_one{false};
thread_local std::optional<World> thread_world;

}  // namespace

World current_world() {
  if (thread_world) return *thread_world;
  const MutexLock lock(world_mutex);
  return process_world;
}

void set_current_world(const World& world) {
  has_had_one = true;
  const MutexLock lock(world_mutex);
  if (world.rank != process_world.rank || world.size != process_world.size) larger_worlds.clear();
  process_world = world;
}

void shrink_current_world(const World& world) {
  const MutexLock lock(world_mutex);
  larger_worlds.push_back(process_world);
  process_world = world;
}

World world_since(const World& made_in) {
  if (thread_world) return made_in;
  const MutexLock lock(world_mutex);
  const bool has_shrunk = std::ranges::any_of(larger_worlds, [&](const World& larger) {
    return larger.rank == made_in.rank && larger.size == made_in.size;
  });
  return has_shrunk ? process_world : made_in;
}

void set_thread_world(const std::optional<World>& world) { thread_world = world; }

bool has_had_world() { return thread_world || has_had_one; }

void forget_worlds() { has_had_one = false; }

bool is_thread_rank() { return thread_world.has_value(); }

}  // namespace lockstep
