// SPDX-License-Identifier: BSD-3-Clause
#include <mutex>

#include <lockstep/base/world.h>

namespace lockstep {
namespace {

struct Slot {
  std::mutex mutex;
  World world;
};

// The plain-number face of the default process group, the one global there is.
Slot& slot() {
  static Slot instance;
  return instance;
}

}  // namespace

World current_world() {
  const std::lock_guard lock(slot().mutex);
  return slot().world;
}

void set_current_world(const World& world) {
  const std::lock_guard lock(slot().mutex);
  slot().world = world;
}

}  // namespace lockstep
