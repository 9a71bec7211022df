// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/backend_spec.h"
#include "rendezvous/rank_info.h"
#include "rendezvous/session.h"

namespace lockstep::rendezvous {

// Throw ArgumentError for options of init() that exclude each other.
void check_options(const SessionOptions& options, const InitMethod& method);
void check_with_python(const SessionOptions& options, const backends::BackendSpec& backend,
                       const InitMethod& method);

// The numbers of this process and the address of rank 0: by the options, the query of the method, or the environment.
// Throws RendezvousError if they are incomplete or contradict each other.
RankInfo find_rank_info(const SessionOptions& options, const InitMethod& method);

}  // namespace lockstep::rendezvous
