// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/base/error.h>

#include "backends/shm/layout.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// Functions that know the state of the ranks; the communicator itself only knows their memory.
struct RankObserver {
  std::function<int()> find_dead = {};           // a rank whose process has died, or -1; empty: none dies
  std::function<bool()> is_refused = {};         // whether a rank refuses the awaited step; empty: none
  int owner = 0;                                 // see node::NodeGroup::owner
  std::function<std::string(int)> name_of = {};  // "rank 1 (pid 4711 on node3)"; empty: "rank 1"
  // What an error says about these ranks; empty: their numbers.
  std::function<ErrorDetails(const std::vector<int>&)> details_of = {};
};

// One rank's view of the memory that the ranks of a group share, and the group's failure. Safe from any
// thread.
class Communicator {
 public:
  // segments[i] and heaps[i] are the addresses of rank i's in this process, where they must stay mapped.
  // `heap_bytes`: of this rank's heap.
  Communicator(int rank, std::vector<std::byte*> segments, std::vector<std::byte*> heaps,
               std::size_t heap_bytes, RankObserver observer = {});

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(segments_.size()); }

  ControlBlock& control_block(int rank) const { return *blocks_[static_cast<std::size_t>(rank)]; }
  ControlBlock& own() const { return *own_; }
  Channel& channel(int from, int to) const;

  std::byte* heap(int rank) const { return heaps_[static_cast<std::size_t>(rank)]; }
  // The offset of the bytes in this rank's heap, or -1.
  std::int64_t heap_offset_of(const std::byte* data, std::size_t bytes) const;

  // Wakes sleeping ranks. Call it after every publication that a rank may wait for.
  void ring() const;
  // ring() without a fence: a rank that is just falling asleep may be missed, and checks at the end of its
  // nap. For publications that ranks rarely wait for.
  void ring_softly() const;

  // A rank that died without leaving the group, or -1.
  int find_dead() const;
  int owner() const { return observer_.owner; }
  bool is_refused() const { return observer_.is_refused && observer_.is_refused(); }
  std::string name_of(int rank) const;
  ErrorDetails details_of(const std::vector<int>& ranks) const;

  // Records a failure unless there is one already, and wakes all ranks.
  void fail(GroupFailure::Cause cause, int culprit, std::uint64_t call) const;
  // The failure that ended the group, or nullptr.
  const GroupFailure* failure() const;
  // Whether a rank writes the failure, or has written it. Any rank may then have given up its calls and use
  // their memory for something else.
  bool is_failing() const;
  // Those of `ranks` that have left the group before they completed collective call `number`. They may then
  // use their memory for something else.
  std::vector<int> left_before(std::vector<int> ranks, std::uint64_t number) const;

 private:
  std::byte* segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }

  int rank_;
  std::vector<std::byte*> segments_;
  std::vector<std::byte*> heaps_;
  std::vector<ControlBlock*> blocks_;
  ControlBlock* own_;
  std::size_t heap_bytes_;
  RankObserver observer_;
};

// Reads of another rank's ordinary memory (process_vm_readv), where the system allows it.

// Lets the other ranks read this process's memory. Call it before this rank posts its first message
// or call.
void offer_memory(const Communicator& communicator);

// Whether this rank can read the memory of rank `peer`, after offer_memory() there. Tries it.
bool can_read_memory(const Communicator& communicator, int peer);

// Copies the bytes at `address` in the process of rank `peer`. False if the system refuses.
bool read_memory(const Communicator& communicator, int peer, std::uint64_t address, Target target);

}  // namespace lockstep::shm
