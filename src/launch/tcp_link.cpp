// SPDX-License-Identifier: BSD-3-Clause
#include "launch/tcp_link.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/addresses.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{100};

int pending_error(int socket) {
  int code = 0;
  socklen_t length = sizeof(code);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno;
}

}  // namespace

TcpLink::TcpLink(const NodesOptions& nodes, Hello hello, std::string local_addr)
    : nodes_(nodes), hello_(std::move(hello)), local_addr_(std::move(local_addr)), deadline_(nodes.join_timeout) {
  begin_attempt();
}

void TcpLink::send(const FromNode& message) {
  connection_.send(encode(message));
}

void TcpLink::watch(std::vector<pollfd>& events) const {
  if (connecting_) {
    events.push_back({.fd = connecting_.get(), .events = POLLOUT, .revents = 0});
  } else if (connected_ && connection_.broken().empty()) {
    events.push_back({.fd = connection_.fd(), .events = connection_.events(), .revents = 0});
  }
}

std::optional<milliseconds> TcpLink::patience() const {
  if (connected_) return std::nullopt;
  return std::min(deadline_.remaining(), connecting_ ? deadline_.remaining() : pause_.remaining()) + milliseconds(1);
}

void TcpLink::advance() {
  if (connected_) {
    connection_.advance();
  } else if (connecting_) {
    pollfd event{.fd = connecting_.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&event, 1, 0) > 0) finish_attempt();
  } else if (pause_.expired()) {
    begin_attempt();
  }
}

std::optional<ToNode> TcpLink::receive() {
  if (auto line = connection_.take_line()) return decode_to_node(*line);
  if (connected_ && !connection_.broken().empty()) {
    throw LaunchError(fmt::format("the launcher at {} is lost ({}), so this node's ranks are stopped",
                                  to_text(nodes_.endpoint), connection_.broken()));
  }
  return std::nullopt;
}

std::string TcpLink::address() const {
  if (!local_addr_.empty()) return local_addr_;
  return own_address(connection_.fd());
}

// The first address of the name that does not refuse at once; the others get their turn at the next attempt.
void TcpLink::begin_attempt() {
  const auto addresses = resolve(nodes_.endpoint);
  int code = 0;
  for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
    UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS) {
      connecting_ = std::move(socket);
      return;
    }
    code = errno;
  }
  try_again(errno_text(code));
}

void TcpLink::finish_attempt() {
  if (const int code = pending_error(connecting_.get()); code != 0) {
    connecting_.reset();
    try_again(errno_text(code));
    return;
  }
  connection_ = LineConnection(std::move(connecting_));
  connection_.set_silence_limit(nodes_.silence_limit);
  connected_ = true;
  connection_.send(encode(hello_));
}

void TcpLink::try_again(const std::string& reason) {
  if (deadline_.expired()) {
    throw LaunchError(fmt::format("no launcher answers at {} after {} ms: {}. Is node 0's launcher running, and "
                                  "may this host connect to that port?",
                                  to_text(nodes_.endpoint), deadline_.timeout().count(), reason));
  }
  pause_ = Deadline(std::min(kPause, deadline_.remaining()));
}

}  // namespace lockstep::launch
