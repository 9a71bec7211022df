// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <lockstep/base/mutex.h>

#include "backends/shm/engine.h"
#include "backends/shm/heap.h"
#include "node/node_group.h"

namespace lockstep::shm {

// One rank's end of a group: the memory of all ranks, its own heap, its engine.
class Connection {
 public:
  // `heap`: the one of part().
  Connection(std::shared_ptr<node::NodeGroup> group, std::shared_ptr<Heap> heap, WaitPolicy wait_policy);

  Engine& engine() { return engine_; }
  // Outlives the group: other groups that this rank forms again have it too.
  const std::shared_ptr<Heap>& heap() const { return heap_; }

  // As comm::MappedMemory. A mapping ends by release().
  std::int64_t allocate_mapped(std::size_t bytes);
  std::byte* map(int owner, std::int64_t place);
  static void release(std::byte* mapping);

  // The memory that each rank of such a group shares.
  static node::NodeGroup::Part part(int size, const std::shared_ptr<Heap>& heap);

 private:
  void free_unmapped() LOCKSTEP_REQUIRES(mapped_mutex_);

  std::shared_ptr<node::NodeGroup> group_;
  std::shared_ptr<Heap> heap_;
  Engine engine_;
  Mutex mapped_mutex_;
  // Pieces of the heap that start with a MappingCount.
  std::vector<std::byte*> mapped_ LOCKSTEP_GUARDED_BY(mapped_mutex_);
};

// Address space for the tensors that a rank of a group of about `size` ranks shares with the others.
std::shared_ptr<Heap> make_heap(int size);

}  // namespace lockstep::shm
