// SPDX-License-Identifier: BSD-3-Clause
#include "comm/peer_check.h"

#include <lockstep/base/error.h>

namespace lockstep::comm {

void check_peers(const node::NodeGroup* others) {
  if (others == nullptr) return;
  if (!others->refusals().empty()) throw DesyncError("another rank refuses it");
  if (const int dead = others->find_dead(); dead >= 0) throw PeerLost(others->name_of(dead) + " died");
}

}  // namespace lockstep::comm
