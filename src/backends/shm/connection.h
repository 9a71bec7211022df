// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/shm/engine.h"
#include "backends/shm/heap.h"
#include "node/node_group.h"

namespace lockstep::shm {

// One rank's end of a group: the memory of all ranks, its own heap, its engine. Tensors on the heap keep it
// alive.
class Connection {
 public:
  Connection(std::shared_ptr<node::NodeGroup> group, WaitPolicy wait_policy);

  Engine& engine() { return engine_; }
  Heap& heap() { return heap_; }

  // As comm::MappedMemory. A mapping ends by release().
  std::int64_t allocate_mapped(std::size_t bytes);
  std::byte* map(int owner, std::int64_t place);
  static void release(std::byte* mapping);

  // The segment that each rank of such a group shares.
  static node::NodeGroup::Part part(int size);

 private:
  void free_unmapped();

  std::shared_ptr<node::NodeGroup> group_;
  Heap heap_;
  Engine engine_;
  std::mutex mapped_mutex_;
  std::vector<std::byte*> mapped_;  // pieces of the heap that start with a MappingCount
};

}  // namespace lockstep::shm
