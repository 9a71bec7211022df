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

// The resources of one rank that the other ranks of its host use.
struct NodeMember {
  RankMemory memory = {};
  UniqueFd process = {};  // its pidfd, readable once it has died; good across pid namespaces too
};

// How rank 0 publishes the name of its local socket: through the common store. Threads of one process need no
// socket.
struct ExchangePoint {
  std::function<void(const std::string&)> publish;
  std::function<std::string()> lookup;
  // Publishes why a rank cannot take part; the first complaint is kept. Empty if there is none.
  std::function<void(const std::string&)> complain;
  std::function<std::string()> complaint;
  std::shared_ptr<ThreadExchange> threads = {};
  std::string group = {};  // its name among `threads`
};

// For a rank that cannot take part: gives the others the reason, so that they do not wait for it.
void decline(int rank, const ExchangePoint& point, const std::string& reason) noexcept;

// Every rank passes its memory, each with a heap or each without, and gets that of all, [i] being rank i's.
// All ranks run on one host as one user. Throws RendezvousError naming the ranks that did not arrive. Throws
// it on all ranks if one cannot join or cannot map the segments of the others.
std::vector<NodeMember> exchange_members(int rank, int size, RankMemory own, const ExchangePoint& point,
                                         const Deadline& deadline);

}  // namespace lockstep::node
