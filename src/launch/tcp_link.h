// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/options.h>

#include "launch/line_connection.h"
#include "launch/messages.h"
#include "launch/node_link.h"

namespace lockstep::launch {

/// The way to a CoordinatorServer, which may come up later than this.
class TcpLink : public NodeLink {
 public:
  TcpLink(const NodesOptions& nodes, Hello hello, std::string local_addr);

  void send(const FromNode& message) override;
  void watch(std::vector<pollfd>& events) const override;
  std::optional<std::chrono::milliseconds> patience() const override;
  void advance() override;
  std::optional<ToNode> receive() override;
  std::string address() const override;
  bool has_unsent() const override { return connected_ && connection_.has_unsent(); }

 private:
  void begin_attempt();
  void finish_attempt();
  void try_again(const std::string& reason);

  NodesOptions nodes_;
  Hello hello_;
  std::string local_addr_;
  Deadline deadline_;  // for connecting
  Deadline pause_{std::chrono::milliseconds(0)};
  UniqueFd connecting_;
  bool connected_ = false;
  LineConnection connection_;
};

}  // namespace lockstep::launch
