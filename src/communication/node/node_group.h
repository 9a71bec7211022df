// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "node/member_exchange.h"
#include "node/rank_status.h"

namespace lockstep::node {

// The ranks of a group that run on one host: their shared memory and their liveness. With every backend, each
// rank records its calls here, so that the others can report what a lost or missing rank was doing. Safe from
// any thread.
class NodeGroup {
 public:
  // The part of each rank's segment that a backend uses: address space, of which only the beginning is
  // committed.
  struct Part {
    std::size_t bytes = 0;
    std::size_t committed = 0;
    // Returns that of this rank, which the others map too; all ranks or none.
    std::function<std::shared_ptr<const SharedMemory>()> heap = {};
  };

  // All ranks call it. Throws RendezvousError naming ranks that did not arrive. Throws Error before any wait
  // if memory is short; the other ranks then get a RendezvousError with that reason.
  static std::shared_ptr<NodeGroup> meet(int rank, int size, Part part, const std::string& name,
                                         const ExchangePoint& point, const Deadline& deadline);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  RankStatus& own_status() const { return *statuses_[static_cast<std::size_t>(rank_)]; }
  const RankStatus& status(int rank) const { return *statuses_[static_cast<std::size_t>(rank)]; }

  // The number of ranks, this one included, all of whose cores this rank may use too.
  int ranks_on_own_cores() const;

  // The backend's part of the segments.
  static std::size_t backend_offset();
  std::byte* backend_part(int rank) const;
  // The start of the heap of a rank, and the bytes of this rank's.
  std::byte* heap(int rank) const;
  std::size_t own_heap_bytes() const;

  // Distinguishes ranks that are threads of this process; 0 if the process is one rank.
  int owner() const { return owner_; }

  // A rank whose process has died or has been killed, or -1. One call checks only some ranks; a few calls
  // check all.
  int find_dead() const;
  // Whether the process of a rank has died or has been killed before announce_end(), or announce_forming().
  bool is_lost(int rank) const;
  std::vector<int> lost_ranks() const;
  // "rank 1 (pid 4711 on node3)", "rank 1 (global rank 3, thread 4712 of pid 4711 on node3)"
  std::string name_of(int rank) const;
  // For an error about these ranks: their numbers in messages, and the host.
  ErrorDetails details_of(const std::vector<int>& ranks) const;
  // The numbers of the ranks in messages, for a group that is a part of another one: [rank]. Call it before
  // the first call on the group.
  void set_shown_ranks(std::vector<int> numbers);
  // The ranks' numbers in the job, which messages give too: [rank]. Call it before the first call.
  void set_global_ranks(std::vector<int> ranks);
  // The backend of the group. Call it before the first call.
  void set_backend(const std::string& name);
  // The rank that issued the call last; -1 if this is not known (any more).
  int last_to_issue(std::uint64_t number) const;
  // Whether every rank has recorded a call with this number or a later one.
  bool have_all_issued(std::uint64_t number) const { return ranks_without(number).empty(); }
  // The ranks that have not.
  std::vector<int> ranks_without(std::uint64_t number) const;

  // From now on the other ranks' waits in `scope` end with `reason` (of all ranks): this rank does not make
  // the calls, or makes them without valid data. The next refusal replaces it.
  void refuse(std::uint64_t scope, const std::string& reason, bool is_final) const;
  bool refuses(int rank, std::uint64_t scope) const;
  // The reasons of the other ranks that refuse the step that this rank waits for, one per line; empty if none
  // does. If this rank refuses it too, only the reasons of ranks whose refusal is final.
  std::string refusals() const;
  std::vector<int> refusing_ranks() const;
  std::string reason_of(int rank) const;

  // "rank 1 (pid 4711 on node3), rank 2 (pid 4712 on node3)": the other ranks that have died, at most 16 of
  // them by name. Empty if none has.
  std::string describe_dead() const;
  // What each other rank was doing, one per line.
  std::string describe_others() const;

  // This rank leaves the run without an error.
  void announce_end() const { own_status().has_finished.store(true, std::memory_order_release); }
  // This rank leaves the group to form it again. It waits in no step any more.
  void announce_forming() const { own_status().scope.store(kFormingScope, std::memory_order_release); }
  // "rank 1 (pid 4711 on node3) finished after 12 steps (37 calls)" for each other rank that has. Empty if
  // none has, or if another rank has died.
  std::string describe_finished() const;
  std::vector<int> finished_ranks() const;

 private:
  static constexpr std::uint64_t kFormingScope = ~std::uint64_t{0};  // of no step

  NodeGroup(int rank, std::vector<NodeMember> members, int owner);
  std::string describe_rank(int rank) const;
  bool has_died(int rank) const;
  bool is_exiting(int rank) const;

  std::vector<int> shown_ranks_;   // empty: as they are
  std::vector<int> global_ranks_;  // empty: not given
  int rank_;
  int owner_;
  std::vector<NodeMember> members_;
  std::vector<RankStatus*> statuses_;
  std::vector<int> processes_;  // [rank] its pid if it is another, visible process, otherwise 0
  mutable std::atomic<unsigned> next_poll_{0};
};

}  // namespace lockstep::node
