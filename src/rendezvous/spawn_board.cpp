// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/spawn_board.h"

namespace lockstep::rendezvous {

SpawnBoard::SpawnBoard(int nprocs) : nprocs_(nprocs) {
  const auto bytes = sizeof(Header) + static_cast<std::size_t>(nprocs) * sizeof(SpawnedRank);
  memory_ = SharedMemory::create("lockstep-spawn", bytes);
  memory_.commit(0, bytes, "spawn's reports");
  ::new (header()) Header{};
  for (int index = 0; index < nprocs; ++index) ::new (&rank(index)) SpawnedRank{};
}

SpawnedRank& SpawnBoard::rank(int rank) const {
  return reinterpret_cast<SpawnedRank*>(memory_.data() + sizeof(Header))[rank];
}

}  // namespace lockstep::rendezvous
