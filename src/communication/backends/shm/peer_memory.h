// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "backends/shm/communicator.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// Reads of another rank's ordinary memory (process_vm_readv), where the system allows it.

// Lets the other ranks read this process's memory. Call it before this rank posts its first message
// or call.
void offer_memory(const Communicator& communicator);

// Whether this rank can read the memory of rank `peer`, after offer_memory() there. Tries it.
bool can_read_memory(const Communicator& communicator, int peer);

// Copies the bytes at `address` in the process of rank `peer`. False if the system refuses.
bool read_memory(const Communicator& communicator, int peer, std::uint64_t address, Target target);

}  // namespace lockstep::shm
