// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "node/member_exchange.h"
#include "node/rank_status.h"

namespace lockstep::node {

// The ranks of a group that run on one host: memory that they share and the means to see when one dies.
// Whatever backend carries the data, each rank notes its calls here, so that the others can say what a rank
// was doing that died or did not come. Safe from any thread.
class NodeGroup {
 public:
  // The part of each rank's segment that a backend uses: address space, whose beginning has real memory.
  struct Part {
    std::size_t bytes = 0;
    std::size_t committed = 0;
  };

  // All ranks call it. Throws RendezvousError naming ranks that did not come, and Error, before anyone is
  // waited for, when memory is short; then the other ranks get a RendezvousError that says so.
  static std::shared_ptr<NodeGroup> meet(int rank, int size, Part part, const std::string& name,
                                         const ExchangePoint& point, const Deadline& deadline);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  RankStatus& own_status() const { return *statuses_[static_cast<std::size_t>(rank_)]; }
  const RankStatus& board(int rank) const { return *statuses_[static_cast<std::size_t>(rank)]; }

  // Ranks, this one included, that have only cores that this one has too: it shares its cores with them.
  int ranks_on_own_cores() const;

  // The backend's part of the segments.
  static std::size_t backend_offset();
  std::byte* backend_part(int rank) const;
  const SharedMemory& own_memory() const { return *members_[static_cast<std::size_t>(rank_)].memory; }

  // Tells ranks apart that are threads of this process; 0 where the process is one rank.
  int owner() const { return owner_; }

  // A rank whose process has died, or has been killed and will do nothing any more, or -1. Looks at some
  // ranks only in one call, at all in a few.
  int find_dead() const;
  // "rank 1 (pid 4711 on node3)", "rank 1 (thread 4712 of pid 4711 on node3)"
  std::string name_of(int rank) const;
  // The rank that was the last to issue the call; -1 where that is not known (any more).
  int last_to_issue(std::uint64_t number) const;
  // Whether every rank has noted a call of this number, or a later one.
  bool have_all_issued(std::uint64_t number) const;

  // From now on the other ranks' waits in `scope` end with `reason` (all ranks' reasons): this one does not
  // make the calls, or only for form's sake. The next refusal replaces it.
  void refuse(std::uint64_t scope, const std::string& reason, bool is_final) const;
  bool refuses(int rank, std::uint64_t scope) const;
  // The reasons of the other ranks that refuse what this rank waits for, a line each; empty when none does.
  // Where this rank refuses it too, only of those whose refusal is final.
  std::string refusals() const;
  std::string reason_of(int rank) const;

  // What each other rank was doing, a line each.
  std::string describe_others() const;

 private:
  NodeGroup(int rank, std::vector<NodeMember> members, int owner);
  std::string describe_rank(int rank) const;
  bool has_died(int rank) const;
  bool is_exiting(int rank) const;

  int rank_;
  int owner_;
  std::vector<NodeMember> members_;
  std::vector<RankStatus*> statuses_;
  std::vector<int> processes_;  // [rank] its process where that can be seen from here and is another, or 0
  mutable std::atomic<unsigned> next_look_{0};
};

}  // namespace lockstep::node
