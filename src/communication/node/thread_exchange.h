// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/base/mutex.h>

#include "base/deadline.h"
#include "base/shared_memory.h"

namespace lockstep::node {

// The memory of a rank that the other ranks of its host map.
struct RankMemory {
  std::shared_ptr<const SharedMemory> segment = {};  // of the rank in one group
  std::shared_ptr<const SharedMemory> heap = {};  // of the rank in every group that it forms again; or none
};

// Exchanges the memory of ranks that are threads of one process. It is mapped once for all of them. Safe from
// any thread.
class ThreadExchange {
 public:
  // Every rank of a group calls it, with the group's name; [i] is the memory of rank i. Throws
  // RendezvousError naming the ranks that did not arrive in time, or if the ranks give up.
  std::vector<RankMemory> exchange(const std::string& group, int rank, int size, RankMemory own,
                                   const Deadline& deadline);

  // A rank has failed: the other ranks stop waiting.
  void give_up();
  bool given_up() const;

 private:
  struct Table {
    std::vector<RankMemory> members;
    int seen = 0;  // ranks that have received the memory
  };

  mutable Mutex mutex_;
  Condition changed_;
  std::map<std::string, Table> tables_ LOCKSTEP_GUARDED_BY(mutex_);
  bool given_up_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::node
