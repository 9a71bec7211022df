// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "base/env.h"

namespace lockstep::rendezvous {

// In a spare process of `lockstep run --spares` (note [Spares] in launch/spare.h): blocks until the launcher needs it for a lost rank, and sets the variables of that rank. Ends
// the process with exit code 0 when the run ends. In another process it does nothing. Throws RendezvousError if
// the launcher says something else.
void become_rank(const Env& env);

}  // namespace lockstep::rendezvous
