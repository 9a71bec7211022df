// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

namespace lockstep::rendezvous {

// Ends the idle worker threads of every OpenMP library in this process that can (OpenMP 5.0), not only of the
// one that LibTorch uses; the next parallel region makes new ones.
void release_idle_workers();

// Whether a child forked off this process can do without this other thread of it: it belongs to LibTorch's
// pool for quantized and mobile operators, is idle, and LibTorch makes that pool anew in a forked child.
bool survives_a_fork(pid_t thread);

}  // namespace lockstep::rendezvous
