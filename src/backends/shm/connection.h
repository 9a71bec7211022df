// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "backends/shm/engine.h"
#include "backends/shm/heap.h"
#include "node/node_group.h"

namespace lockstep::shm {

// One rank's end of a group: the memory of all ranks, its own heap, its engine. Tensors on the heap keep it
// alive.
class Connection {
 public:
  explicit Connection(std::shared_ptr<node::NodeGroup> group);

  Engine& engine() { return engine_; }
  Heap& heap() { return heap_; }

  // The segment that each rank of such a group shares.
  static node::NodeGroup::Part part(int size);

 private:
  std::shared_ptr<node::NodeGroup> group_;
  Heap heap_;
  Engine engine_;
};

}  // namespace lockstep::shm
