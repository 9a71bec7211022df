// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/group_trouble.h"

#include <thread>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include "comm/group_state.h"

namespace lockstep::ddp {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLongestDelay{2000};

}  // namespace

GroupTrouble::GroupTrouble(ProcessGroup group)
    : group_(std::move(group)), number_(group_.state().next_scope()) {}

bool GroupTrouble::tells_others() const { return group_.state().host_group() != nullptr; }

GroupTrouble::Listening::Listening(const GroupTrouble& trouble) : trouble_(trouble) {
  if (const auto host = trouble_.group_.state().host_group()) {
    host->own_board().scope.store(trouble_.scope(), std::memory_order_relaxed);
  }
}

GroupTrouble::Listening::~Listening() {
  if (const auto host = trouble_.group_.state().host_group()) {
    host->own_board().scope.store(0, std::memory_order_relaxed);
  }
}

void GroupTrouble::give_up(const std::string& reason, bool is_final) const {
  if (const auto host = group_.state().host_group()) host->refuse(scope(), reason, is_final);
}

void GroupTrouble::throw_if_given_up() const {
  const auto host = group_.state().host_group();
  const auto reasons = host ? host->refusals() : std::string();
  if (reasons.empty()) return;
  throw DesyncError(
      fmt::format("{}: this backward was given up by other ranks:{}", group_.state().whoami(), reasons));
}

std::string GroupTrouble::reasons_of_others() const {
  const auto host = group_.state().host_group();
  if (!host) return "";
  // It has given its reason, or it will not come as far as giving one.
  const auto has_spoken = [&](int rank) {
    const auto& board = host->board(rank);
    const bool waits = board.awaited.load(std::memory_order_acquire) > last_call();
    return host->refuses(rank, scope()) || waits || host->find_dead() >= 0;
  };
  std::string text;
  const Deadline deadline(kLongestDelay);
  for (int rank = 0; rank < host->size(); ++rank) {
    if (rank == host->rank()) continue;
    while (!has_spoken(rank) && !deadline.expired()) std::this_thread::sleep_for(Milliseconds(1));
    text += fmt::format("\n  {}: {}", host->name_of(rank),
                        host->refuses(rank, scope()) ? host->reason_of(rank) : "none");
  }
  return text;
}

std::uint64_t GroupTrouble::last_call() const { return group_.state().log().last_number(); }

int GroupTrouble::last_to_issue(std::uint64_t call) const {
  const auto host = group_.state().host_group();
  return host ? host->last_to_issue(call) : -1;
}

}  // namespace lockstep::ddp
