// SPDX-License-Identifier: BSD-3-Clause
#include "comm/peer_check.h"

#include <thread>

#include <fmt/format.h>

#include "base/deadline.h"
#include "node/node_group.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeToDie = 100ms;  // of the rank because of which SIGTERM was sent

std::string reason_of_termination(const node::NodeGroup* others) {
  const int dead = find_dead_soon(others, kTimeToDie);
  return dead >= 0 ? others->name_of(dead) + " died"
                   : "SIGTERM came, which mpirun sends to all ranks when one of them fails";
}

}  // namespace

bool NodeWait::is_refused() const { return others_ != nullptr && !others_->refusals().empty(); }

int NodeWait::find_dead() const { return others_ == nullptr ? -1 : others_->find_dead(); }

void NodeWait::check() const {
  const auto [fault, rank] = check_peers(*this);
  switch (fault) {
    case PeerFault::refused:
      throw DesyncError("another rank refuses it");
    case PeerFault::dead:
      throw PeerLost(others_->name_of(rank) + " died");
    case PeerFault::left:
      throw PeerLost(reason_of_termination(others_));
    case PeerFault::late:
      std::rethrow_exception(late_);
    case PeerFault::none:
      break;
  }
}

std::exception_ptr late_error(bool is_late, std::chrono::milliseconds timeout, const std::string& where) {
  if (!is_late) return nullptr;
  return std::make_exception_ptr(
      TimeoutError(fmt::format("it has not ended{} after {} ms", where, timeout.count())));
}

int find_dead_soon(const node::NodeGroup* others, std::chrono::milliseconds limit) {
  if (others == nullptr) return -1;
  const Deadline deadline(limit);
  while (true) {
    const int dead = others->find_dead();
    if (dead >= 0 || deadline.expired()) return dead;
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace lockstep::comm
