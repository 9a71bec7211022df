// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "launch/coordinator.h"

namespace lockstep::launch {

using Clock = Coordinator::Clock;

// A run with a clock that advances only on request.
class FakeRun {
 public:
  explicit FakeRun(const CoordinatorOptions& options)
      : shared_(options.shared), coordinator_(options, now_) {}

  // With the options of the run.
  std::string join(int node, NodeInfo info = {}) {
    info.shared = shared_;
    return join_with_own_options(node, info);
  }
  std::string join_with_own_options(int node, const NodeInfo& info) {
    auto refusal = coordinator_.join(node, info, now_);
    collect();
    return refusal;
  }
  void handle(int node, const FromNode& message) {
    coordinator_.handle(node, message, now_);
    collect();
  }
  void lose(int node) {
    coordinator_.lose(node, "its connection closed", now_);
    collect();
  }
  void wait(Clock::duration span) {
    now_ += span;
    coordinator_.tick(now_);
    collect();
  }
  bool ended() const { return coordinator_.ended(); }
  std::optional<Clock::duration> poll_timeout() const {
    const auto tick = coordinator_.next_tick();
    return tick ? std::optional(*tick - now_) : std::nullopt;
  }

  // The nodes that got this message since the last call, in order.
  template <typename Kind>
  std::vector<int> told() {
    std::vector<int> nodes;
    for (const auto& message : messages_) {
      if (std::holds_alternative<Kind>(message.what)) nodes.push_back(message.to);
    }
    return nodes;
  }
  template <typename Kind>
  Kind last() {
    for (auto at = messages_.rbegin(); at != messages_.rend(); ++at) {
      if (const auto* found = std::get_if<Kind>(&at->what)) return *found;
    }
    ADD_FAILURE() << "no node got that message";
    return {};
  }
  NodeAssignment assignment_of(int node) {
    for (auto at = messages_.rbegin(); at != messages_.rend(); ++at) {
      const auto* start = std::get_if<Start>(&at->what);
      if (start != nullptr && at->to == node) return start->assignment;
    }
    ADD_FAILURE() << "node " << node << " was not started";
    return {};
  }
  void forget() { messages_.clear(); }

 private:
  void collect() {
    for (auto& message : coordinator_.take_messages()) messages_.push_back(std::move(message));
  }

  Clock::time_point now_{};
  SharedOptions shared_;
  Coordinator coordinator_;
  std::vector<Coordinator::Message> messages_;
};

}  // namespace lockstep::launch
