// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <memory>
#include <mutex>

#include <lockstep/device/graph_device.h>

namespace lockstep {

/// A graph that others may take away from the one who replays it: a communicator of NCCL neither closes nor
/// aborts while a graph holds calls of it. Any thread may call. No counterpart in PyTorch.
class RevocableGraph {
 public:
  /// Once, when the graph has been captured; one that was revoked meanwhile is destroyed at once.
  void set(std::unique_ptr<DeviceGraph> graph);
  /// Queues the graph on the current stream, after set(). Throws the reason once the graph was revoked.
  void replay();
  /// Destroys the graph, which waits for its last replay; the first reason stays.
  void revoke(std::exception_ptr reason);

 private:
  std::mutex mutex_;
  std::unique_ptr<DeviceGraph> graph_;
  std::exception_ptr reason_;
};

/// That which this thread is capturing; nullptr when it captures none.
std::shared_ptr<RevocableGraph> graph_under_capture();

}  // namespace lockstep
