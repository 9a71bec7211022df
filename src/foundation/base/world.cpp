// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <optional>

#include "base/process_state.h"

namespace lockstep {
namespace {

std::mutex world_mutex;
World process_world;
std::atomic<bool> has_had_one{false};
thread_local std::optional<World> thread_world;

}  // namespace

World current_world() {
  if (thread_world) return *thread_world;
  const std::lock_guard lock(world_mutex);
  return process_world;
}

void set_current_world(const World& world) {
  has_had_one = true;
  const std::lock_guard lock(world_mutex);
  process_world = world;
}

void set_thread_world(const std::optional<World>& world) { thread_world = world; }

bool has_had_world() { return thread_world || has_had_one; }

void forget_worlds() { has_had_one = false; }

bool is_thread_rank() { return thread_world.has_value(); }

}  // namespace lockstep
