// SPDX-License-Identifier: BSD-3-Clause
#include "launch/coordinator_client.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/addresses.h"

namespace lockstep::launch {

namespace {
constexpr Coordinator::Node kOnlyNode = 0;
}

LocalCoordinatorClient::LocalCoordinatorClient(const CoordinatorOptions& options, const NodeInfo& info,
                                               std::string address)
    : coordinator_(options, Coordinator::Clock::now()), address_(std::move(address)) {
  coordinator_.join(kOnlyNode, info, Coordinator::Clock::now());
  fetch();
}

void LocalCoordinatorClient::send(const FromNode& message) {
  coordinator_.handle(kOnlyNode, message, Coordinator::Clock::now());
  fetch();
}

std::optional<ToNode> LocalCoordinatorClient::receive() {
  if (inbox_.empty()) return std::nullopt;
  ToNode message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

void LocalCoordinatorClient::fetch() {
  for (auto& message : coordinator_.take_messages()) inbox_.push_back(std::move(message.what));
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{100};
constexpr milliseconds kConnectLimit{5'000};
constexpr milliseconds kWelcomeLimit{20'000};

int pending_error(int socket) {
  int code = 0;
  socklen_t length = sizeof(code);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno;
}

}  // namespace

TcpCoordinatorClient::TcpCoordinatorClient(const NodesOptions& nodes, Hello hello, std::string local_addr)
    : nodes_(nodes),
      hello_(std::move(hello)),
      local_addr_(std::move(local_addr)),
      deadline_(nodes.join_timeout) {
  begin_attempt();
}

void TcpCoordinatorClient::send(const FromNode& message) { connection_.send(encode(message)); }

void TcpCoordinatorClient::watch(std::vector<pollfd>& events) const {
  if (connecting_) {
    events.push_back({.fd = connecting_.get(), .events = POLLOUT, .revents = 0});
  } else if (connected_ && connection_.broken().empty()) {
    events.push_back({.fd = connection_.fd(), .events = connection_.events(), .revents = 0});
  }
}

std::optional<milliseconds> TcpCoordinatorClient::poll_timeout() const {
  if (welcome_) return std::nullopt;
  return std::min(limit_.remaining(), connected_ ? limit_.remaining() : deadline_.remaining()) +
         milliseconds(1);
}

void TcpCoordinatorClient::advance() {
  if (connected_) {
    connection_.advance();
  } else if (connecting_) {
    pollfd event{.fd = connecting_.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&event, 1, 0) > 0) {
      finish_attempt();
    } else if (limit_.expired() || deadline_.expired()) {
      connecting_.reset();
      try_again("it does not answer (does a firewall drop the packets?)");
    }
  } else if (limit_.expired()) {
    begin_attempt();
  }
}

std::optional<ToNode> TcpCoordinatorClient::receive() {
  if (auto line = connection_.take_line()) {
    auto message = decode_to_node(*line);
    welcome_ = true;
    if (!std::holds_alternative<Welcome>(message)) return message;
    return receive();
  }
  if (connected_ && !connection_.broken().empty()) {
    throw LaunchError(fmt::format("the launcher at {} is lost ({}); stopping this node's ranks",
                                  to_text(nodes_.endpoint), connection_.broken()));
  }
  check_welcome();
  return std::nullopt;
}

void TcpCoordinatorClient::check_welcome() const {
  if (!connected_ || welcome_ || !limit_.expired()) return;
  throw LaunchError(
      fmt::format("the program that listens at {} is not a Lockstep launcher: it sent nothing within {} ms",
                  to_text(nodes_.endpoint), limit_.timeout().count()));
}

// A node that connects through the loopback interface is on the coordinator's host.
std::string TcpCoordinatorClient::address() const {
  if (!local_addr_.empty()) return local_addr_;
  const auto own = own_address(connection_.fd());
  const bool loopback = own.starts_with("127.") || own == "::1";
  return loopback ? nodes_.endpoint.host : own;
}

void TcpCoordinatorClient::begin_attempt() {
  try {
    if (connect_to_next()) return;
    try_again(errno_text(errno));
  } catch (const UnknownHost& error) {
    try_again(error.what());
  }
}

// Each attempt tries the next address of the name.
bool TcpCoordinatorClient::connect_to_next() {
  const auto addresses = resolve(nodes_.endpoint);
  std::size_t count = 0;
  for (const auto* at = addresses.get(); at != nullptr; at = at->ai_next) ++count;
  const auto* address = addresses.get();
  for (std::size_t skipped = attempts_++ % count; skipped > 0; --skipped) address = address->ai_next;
  connecting_.reset(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  limit_ = Deadline(kConnectLimit);
  if (connecting_ &&
      (::connect(connecting_.get(), address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS)) {
    return true;
  }
  connecting_.reset();
  return false;
}

void TcpCoordinatorClient::finish_attempt() {
  if (const int code = pending_error(connecting_.get()); code != 0) {
    connecting_.reset();
    try_again(errno_text(code));
    return;
  }
  connection_ = LineConnection(std::move(connecting_));
  connection_.set_silence_limit(nodes_.silence_limit);
  connected_ = true;
  limit_ = Deadline(kWelcomeLimit);
  connection_.send(encode(hello_));
}

void TcpCoordinatorClient::try_again(const std::string& reason) {
  if (deadline_.expired()) {
    throw LaunchError(
        fmt::format("no launcher answers at {} after {} ms: {}. Is node 0's launcher running, and "
                    "may this host connect to that port?",
                    to_text(nodes_.endpoint), deadline_.timeout().count(), reason));
  }
  limit_ = Deadline(std::min(kPause, deadline_.remaining()));
}

}  // namespace lockstep::launch
