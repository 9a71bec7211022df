// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/peer_memory.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace lockstep::shm {
namespace {

// The same number in the process's own memory and in its control block: in another pid namespace, the number
// of a process may be that of a stranger.
const std::uint64_t& own_token() {
  static const std::uint64_t token = std::uint64_t{std::random_device{}()} << 32U | std::random_device{}();
  return token;
}

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

void offer_memory(const Communicator& communicator) {
  // Yama otherwise lets only a process's ancestors read it; without Yama this fails and is not needed.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  auto& block = communicator.own();
  block.token = own_token();
  block.token_address = address_of(&own_token());
  block.process = ::getpid();
}

bool can_read_memory(const Communicator& communicator, int peer) {
  std::uint64_t token = 0;
  const auto& block = communicator.control_block(peer);
  return read_memory(communicator, peer, block.token_address,
                     {reinterpret_cast<std::byte*>(&token), sizeof(token)}) &&
         token == block.token;
}

bool read_memory(const Communicator& communicator, int peer, std::uint64_t address, Target target) {
  const auto process = communicator.control_block(peer).process;
  while (target.bytes > 0) {
    const iovec here{target.data, target.bytes};
    const iovec there{reinterpret_cast<void*>(address), target.bytes};
    const auto count = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    const auto read = static_cast<std::size_t>(count);
    target = {target.data + read, target.bytes - read};
    address += read;
  }
  return true;
}

}  // namespace lockstep::shm
