// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "node/thread_exchange.h"

namespace lockstep::node {

// One rank as the others of its host see it.
struct NodeMember {
  std::shared_ptr<const SharedMemory> memory = {};  // its segment
  UniqueFd process = {};  // its pidfd, readable once it has died; good across pid namespaces too
};

// How rank 0 tells the others the name of its local socket: through the store that they share. Threads of one
// process need no socket.
struct ExchangePoint {
  std::function<void(const std::string&)> publish;
  std::function<std::string()> lookup;
  // Why a rank cannot take part, where all can read it; the first complaint stays. None yet: empty.
  std::function<void(const std::string&)> complain;
  std::function<std::string()> complaint;
  std::shared_ptr<ThreadExchange> threads = {};
  std::string group = {};  // its name among `threads`
};

// For a rank that cannot take part: gives the others the reason, so that they do not wait for it.
void decline(int rank, const ExchangePoint& point, const std::string& reason) noexcept;

// Every rank passes its segment and gets all of them, [i] being rank i's. All ranks run on one host as
// one user. Throws RendezvousError naming the ranks that did not come, on all ranks when one stays away or
// cannot map the segments of the others.
std::vector<NodeMember> exchange_members(int rank, int size, SharedMemory own, const ExchangePoint& point,
                                         const Deadline& deadline);

}  // namespace lockstep::node
