// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "rendezvous/session.h"

namespace lockstep::rendezvous {

// Checks the options, finds this process's rank and the store that all ranks share, waits there for the other ranks
// unless this one joins later, and connects the default group.
std::unique_ptr<Session> meet(const SessionOptions& options);

}  // namespace lockstep::rendezvous
