// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/shm/engine.h"

namespace lockstep::shm {

// The engines of this process, or of a thread that is a rank: a wait in one group also advances the calls of
// the other groups. Otherwise two ranks that wait for each other in different groups would deadlock. A forked
// child has none of its parent's. Safe from any thread.
void add_engine(Engine& engine);
void remove_engine(Engine& engine);

// Advances the calls of all engines except `self`. Returns whether there were any.
bool advance_others(const Engine& self);

}  // namespace lockstep::shm
