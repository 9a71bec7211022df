// SPDX-License-Identifier: BSD-3-Clause
#include "launch/coordinator_server.h"

#include <algorithm>
#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "launch/messages.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGoodbyeLimit{5'000};
constexpr int kBacklog = 1024;

bool listen_at(int socket, sa_family_t family, std::uint16_t port) {
  const int on = 1;
  const int off = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_in);
  address.ss_family = family;
  if (family == AF_INET6) {
    ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = htons(port);
    length = sizeof(sockaddr_in6);
  } else {
    reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port);
  }
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
         ::listen(socket, kBacklog) == 0;
}

// On all addresses, of both families where the machine has IPv6.
UniqueFd listening_socket(std::uint16_t port) {
  int code = 0;
  for (const sa_family_t family : {AF_INET6, AF_INET}) {
    UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket && listen_at(socket.get(), family, port)) return socket;
    code = errno;
    if (code == EADDRINUSE) break;
  }
  throw LaunchError(
      fmt::format("the launchers cannot meet at TCP port {}: {}; choose another", port, errno_text(code)));
}

}  // namespace

CoordinationOptions coordination_options(const LaunchOptions& options) {
  if (!options.nodes) return {.master_addr = options.master_addr, .max_restarts = options.max_restarts};
  return {.min_nodes = options.nodes->min_nodes,
          .max_nodes = options.nodes->max_nodes,
          .numbered = options.nodes->node_rank.has_value(),
          .master_addr = options.nodes->node_rank ? options.master_addr : "",
          .max_restarts = options.max_restarts,
          .join_timeout = options.nodes->join_timeout,
          .last_call_timeout = options.nodes->last_call_timeout};
}

CoordinatorServer::CoordinatorServer(const LaunchOptions& options, const NodesOptions& nodes)
    : nodes_(nodes),
      run_id_(options.run_id),
      listener_(listening_socket(nodes.endpoint.port)),
      coordination_(coordination_options(options), Coordination::Clock::now()) {}

void CoordinatorServer::serve(int stop) {
  pollfd event{.fd = stop, .events = POLLIN, .revents = 0};
  while (::poll(&event, 1, 0) <= 0) step(stop);
  say_goodbye();
}

void CoordinatorServer::step(int stop) {
  std::vector<pollfd> events{{.fd = stop, .events = POLLIN, .revents = 0},
                             {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& [node, guest] : guests_) {
    events.push_back({.fd = guest.connection.fd(), .events = guest.connection.events(), .revents = 0});
  }
  ::poll(events.data(), events.size(), patience());
  accept_guests();
  std::vector<Coordination::Node> nodes;
  for (const auto& [node, guest] : guests_) nodes.push_back(node);
  for (const auto node : nodes) read(node);
  if (const auto tick = coordination_.next_tick(); tick && Coordination::Clock::now() >= *tick) {
    coordination_.tick(Coordination::Clock::now());
  }
  drop_silent_strangers();
  deliver();
}

// A launcher says hello at once.
void CoordinatorServer::drop_silent_strangers() {
  std::erase_if(guests_,
                [](const auto& guest) { return !guest.second.known && guest.second.hello_limit.expired(); });
}

int CoordinatorServer::patience() const {
  auto tick = coordination_.next_tick();
  for (const auto& [node, guest] : guests_) {
    const auto end = Coordination::Clock::now() + guest.hello_limit.remaining();
    if (!guest.known) tick = std::min(tick.value_or(end), end);
  }
  if (!tick) return -1;
  const auto left = std::chrono::duration_cast<milliseconds>(*tick - Coordination::Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 3'600'000));
}

void CoordinatorServer::accept_guests() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    LineConnection connection(std::move(socket));
    connection.set_silence_limit(nodes_.silence_limit);
    guests_.emplace(next_++, Guest{.connection = std::move(connection)});
  }
}

void CoordinatorServer::read(Coordination::Node node) {
  Guest& guest = guests_.at(node);
  guest.connection.advance();
  try {
    while (const auto line = guest.connection.take_line()) handle_line(node, *line);
  } catch (const LaunchError& error) {
    guest.connection.send(encode(ToNode(Refused{error.what()})));
    coordination_.lose(node, error.what(), Coordination::Clock::now());
    guests_.erase(node);
    return;
  }
  if (guest.connection.broken().empty()) return;
  coordination_.lose(node, guest.connection.broken(), Coordination::Clock::now());
  guests_.erase(node);
}

void CoordinatorServer::handle_line(Coordination::Node node, const std::string& line) {
  if (!guests_.at(node).known) {
    greet(node, line);
  } else {
    coordination_.hear(node, decode_from_node(line), Coordination::Clock::now());
  }
}

void CoordinatorServer::greet(Coordination::Node node, const std::string& line) {
  const Hello hello = decode_hello(line);
  if (hello.run_id != run_id_) {
    throw LaunchError(fmt::format("here meets the run \"{}\", not \"{}\" (rdzv-id)", run_id_, hello.run_id));
  }
  guests_.at(node).known = true;
  guests_.at(node).connection.send(encode(ToNode(Welcome{})));
  coordination_.join(node, hello.node, Coordination::Clock::now());
}

void CoordinatorServer::deliver() {
  for (const auto& message : coordination_.take_messages()) {
    const auto guest = guests_.find(message.to);
    if (guest == guests_.end()) continue;
    guest->second.connection.send(encode(message.what));
  }
}

// What was sent must arrive, so the connections stay open until the others have closed theirs.
void CoordinatorServer::say_goodbye() {
  if (!coordination_.ended()) {
    const ToNode end = End{FailureReport{.reason = "the launcher at which all nodes met has ended"}};
    for (auto& [node, guest] : guests_) guest.connection.send(encode(end));
  }
  listener_.reset();
  std::erase_if(guests_, [](const auto& guest) { return !guest.second.known; });
  const Deadline deadline(kGoodbyeLimit);
  while (!guests_.empty() && !deadline.expired()) {
    std::vector<pollfd> events;
    for (auto& [node, guest] : guests_) {
      guest.connection.advance();
      events.push_back({.fd = guest.connection.fd(), .events = guest.connection.events(), .revents = 0});
    }
    std::erase_if(guests_, [](const auto& guest) { return !guest.second.connection.broken().empty(); });
    if (!guests_.empty())
      ::poll(events.data(), events.size(), static_cast<int>(deadline.remaining().count()));
  }
}

}  // namespace lockstep::launch
