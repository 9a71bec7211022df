// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include <lockstep/launch/coordination.h>

namespace lockstep::launch {

/// One node's way to the Coordination of the run. Nothing here blocks: the owner polls for what watch()
/// names, for at most patience(), then calls advance() and takes what came.
class NodeLink {
 public:
  NodeLink() = default;
  virtual ~NodeLink() = default;
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  virtual void send(const FromNode& message) = 0;
  virtual void watch(std::vector<pollfd>& events) const = 0;
  virtual std::optional<std::chrono::milliseconds> patience() const = 0;
  virtual void advance() = 0;
  /// Throws LaunchError once the link is lost and nothing more has come.
  virtual std::optional<ToNode> receive() = 0;
  /// This node's address for the other nodes.
  virtual std::string address() const = 0;
};

}  // namespace lockstep::launch
