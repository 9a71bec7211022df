// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <memory>
#include <mutex>

#include <lockstep/device/graph_device.h>

namespace lockstep {

/// A graph that others may take away from the one who replays it: a communicator of NCCL neither closes nor
/// aborts while a graph holds calls of it. Any thread may call.
class RevocableGraph {
 public:
  void set(std::unique_ptr<DeviceGraph> graph);
  /// Throws the reason once the graph was revoked.
  void replay();
  /// Destroys the graph, which waits for its last replay.
  void revoke(std::exception_ptr reason);

 private:
  std::mutex mutex_;
  std::unique_ptr<DeviceGraph> graph_;
  std::exception_ptr reason_;
};

/// That which this thread is capturing; nullptr when it captures none.
std::shared_ptr<RevocableGraph> graph_under_capture();

}  // namespace lockstep
