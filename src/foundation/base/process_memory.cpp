// SPDX-License-Identifier: BSD-3-Clause
#include "base/process_memory.h"

#include <cerrno>
#include <sys/uio.h>

namespace lockstep {

bool read_process_memory(pid_t process, std::uint64_t address, std::span<std::byte> target) {
  while (!target.empty()) {
    const iovec here{target.data(), target.size()};
    const iovec there{reinterpret_cast<void*>(address), target.size()};
    const auto count = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    target = target.subspan(static_cast<std::size_t>(count));
    address += static_cast<std::uint64_t>(count);
  }
  return true;
}

}  // namespace lockstep
