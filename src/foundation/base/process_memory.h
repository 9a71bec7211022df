// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/types.h>

namespace lockstep {

// Copies the bytes at `address` of a process of this host (process_vm_readv). False if the system refuses.
bool read_process_memory(pid_t process, std::uint64_t address, std::span<std::byte> target);

}  // namespace lockstep
