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

 private:
  void begin_attempt();
  bool connect_to_next();
  void finish_attempt();
  void try_again(const std::string& reason);
  void check_welcome() const;

  NodesOptions nodes_;
  Hello hello_;
  std::string local_addr_;
  Deadline deadline_;                             // for connecting
  Deadline limit_{std::chrono::milliseconds(0)};  // of the pause, this connection attempt, or the welcome
  std::size_t attempts_ = 0;
  UniqueFd connecting_;
  bool connected_ = false;
  bool welcome_ = false;
  LineConnection connection_;
};

}  // namespace lockstep::launch
