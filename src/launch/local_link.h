// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <deque>

#include "launch/node_link.h"

namespace lockstep::launch {

/// A run of one node, which decides for itself.
class LocalLink : public NodeLink {
 public:
  LocalLink(const CoordinationOptions& options, const NodeInfo& info, std::string address);

  void send(const FromNode& message) override;
  void watch(std::vector<pollfd>& /*events*/) const override {}
  std::optional<std::chrono::milliseconds> patience() const override { return std::nullopt; }
  void advance() override {}
  std::optional<ToNode> receive() override;
  std::string address() const override { return address_; }

 private:
  void fetch();

  Coordination coordination_;
  std::string address_;
  std::deque<ToNode> inbox_;
};

}  // namespace lockstep::launch
