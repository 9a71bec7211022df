// SPDX-License-Identifier: BSD-3-Clause
#include "launch/local_link.h"

#include <utility>

namespace lockstep::launch {

namespace {
constexpr Coordination::Node kOnlyNode = 0;
}

LocalLink::LocalLink(const CoordinationOptions& options, const NodeInfo& info, std::string address)
    : coordination_(options, Coordination::Clock::now()), address_(std::move(address)) {
  coordination_.join(kOnlyNode, info, Coordination::Clock::now());
  fetch();
}

void LocalLink::send(const FromNode& message) {
  coordination_.hear(kOnlyNode, message, Coordination::Clock::now());
  fetch();
}

std::optional<ToNode> LocalLink::receive() {
  if (inbox_.empty()) return std::nullopt;
  ToNode message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

void LocalLink::fetch() {
  for (auto& message : coordination_.take_messages()) inbox_.push_back(std::move(message.what));
}

}  // namespace lockstep::launch
