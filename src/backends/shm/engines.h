// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::shm {

class Engine;

// The engines of this process, or of the thread that is a rank by itself: a wait in one group also moves the
// calls of the others forward. Without that, two ranks that wait for each other in different groups would
// deadlock. Safe from any thread.
void add_engine(Engine& engine);
void remove_engine(Engine& engine);

// Whether an engine beside `self` has calls under way; they are moved forward.
bool advance_others(const Engine& self);

}  // namespace lockstep::shm
