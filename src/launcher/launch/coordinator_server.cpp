// SPDX-License-Identifier: BSD-3-Clause
#include "launch/coordinator_server.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/sockets.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFinishLimit{5'000};
constexpr int kNodesBacklog = 1024;
// Connections that have not sent Hello. Beyond it the oldest are dropped.
constexpr std::size_t kMaxStrangers = 16'384;
// For a connection that looks at the ranks or answers, after its Hello.
constexpr milliseconds kLookLimit{30'000};
// While so many bytes wait for the one that looks, no others are read for it.
constexpr std::size_t kMostQueued = std::size_t{8} * 1024 * 1024;
// Before another attempt to accept a connection for which there is no descriptor.
constexpr milliseconds kAcceptPause{1'000};

bool is_numeric_address(const std::string& host) {
  in6_addr either{};
  return ::inet_pton(AF_INET, host.c_str(), &either) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &either) == 1;
}

// The loopback address of an endpoint that is on this host for all nodes. A name may have another address on
// other hosts: Debian's hosts file maps the machine's own name to 127.0.1.1.
std::optional<SocketAddress> loopback_address(const NodesOptions& nodes) {
  const auto& host = nodes.endpoint.host;
  if (nodes.max_nodes > 1 && host != "localhost" && !is_numeric_address(host)) return std::nullopt;
  const auto found = resolve_now(host).addresses;
  if (found.empty() || !std::ranges::all_of(found, &SocketAddress::is_loopback)) return std::nullopt;
  return found.front();
}

// The soft limit is often 1024, for programs that use select(). REQUIRES that ranks do not inherit it.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Without a secret, programs on other hosts cannot connect where they need not.
UniqueFd listening_socket(const NodesOptions& nodes) {
  const auto port = nodes.endpoint.port;
  const auto address = nodes.secret.empty() ? loopback_address(nodes) : std::nullopt;
  if (nodes.secret.empty() && !address) {
    log(LogLevel::warning,
        fmt::format("any program that can connect to port {} of this host can join the run; set "
                    "LOCKSTEP_SECRET to the same random text on all nodes",
                    port));
  }
  auto socket = bound_socket(port, {.address = address, .flags = SOCK_NONBLOCK});
  if (socket && ::listen(socket.get(), kNodesBacklog) == 0) return socket;
  throw_error<LaunchError>("the coordinator cannot listen on TCP port {}: {}; choose another port", port,
                           errno_text(errno));
}

}  // namespace

SharedOptions shared_options(const LaunchOptions& options) {
  return {.run_id = options.run_id,
          .min_nodes = options.nodes ? options.nodes->min_nodes : 1,
          .max_nodes = options.nodes ? options.nodes->max_nodes : 1,
          .max_restarts = options.max_restarts,
          .on_loss = text_of(options.on_loss)};
}

CoordinatorOptions coordinator_options(const LaunchOptions& options) {
  const auto shared = shared_options(options);
  if (!options.nodes) return {.shared = shared, .master_addr = options.master_addr};
  return {.shared = shared,
          .host = host_name(),
          .numbered = options.nodes->node_rank.has_value(),
          .master_addr = options.nodes->node_rank ? options.master_addr : "",
          .join_timeout = options.nodes->join_timeout,
          .last_call_timeout = options.nodes->last_call_timeout};
}

CoordinatorServer::CoordinatorServer(const LaunchOptions& options, const NodesOptions& nodes)
    : nodes_(nodes),
      listener_(listening_socket(nodes)),
      coordinator_(coordinator_options(options), Coordinator::Clock::now()) {}

void CoordinatorServer::serve(int stop) {
  raise_descriptor_limit();
  pollfd event{.fd = stop, .events = POLLIN, .revents = 0};
  while (::poll(&event, 1, 0) <= 0) step(stop);
  finish_connections();
}

void CoordinatorServer::step(int stop) {
  std::vector<pollfd> events{
      {.fd = stop, .events = POLLIN, .revents = 0},
      {.fd = accept_pause_.expired() ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
  for (const auto& [node, client] : clients_) {
    if (must_wait(client)) continue;
    events.push_back({.fd = client.connection.fd(), .events = client.connection.events(), .revents = 0});
  }
  ::poll(events.data(), events.size(), poll_timeout());
  accept_clients();
  std::vector<Coordinator::Node> nodes;
  for (const auto& [node, client] : clients_) nodes.push_back(node);
  for (const auto node : nodes) read(node);
  if (const auto tick = coordinator_.next_tick(); tick && Coordinator::Clock::now() >= *tick) {
    coordinator_.tick(Coordinator::Clock::now());
  }
  looks_.tick(Coordinator::Clock::now());
  drop_late_clients();
  send_messages();
  send_alive();
}

// A launcher sends Hello immediately.
void CoordinatorServer::drop_late_clients() {
  const auto is_stranger = [](const auto& client) { return !client.second.has_joined; };
  auto strangers = static_cast<std::size_t>(std::ranges::count_if(clients_, is_stranger));
  std::erase_if(clients_, [&](const auto& client) {
    if (client.second.is_node()) return false;
    const bool is_too_much = is_stranger(client) && strangers-- > kMaxStrangers;
    return is_too_much || client.second.limit.expired();
  });
}

int CoordinatorServer::poll_timeout() const {
  auto tick = coordinator_.next_tick();
  if (const auto next = looks_.next_tick()) tick = std::min(tick.value_or(*next), *next);
  const auto wake_at = [&](const Deadline& deadline) {
    const auto end = Coordinator::Clock::now() + deadline.remaining();
    tick = std::min(tick.value_or(end), end);
  };
  if (!accept_pause_.expired()) wake_at(accept_pause_);
  for (const auto& [node, client] : clients_) {
    if (!client.is_node()) wake_at(client.limit);
  }
  if (!clients_.empty()) wake_at(alive_pause_);
  if (!tick) return -1;
  const auto left = std::chrono::duration_cast<milliseconds>(*tick - Coordinator::Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 3'600'000));
}

void CoordinatorServer::accept_clients() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (!is_exhaustion(errno)) return;
      make_room();
      if (!accept_pause_.expired()) return;
      continue;
    }
    LineConnection connection(std::move(socket));
    connection.set_silence_limit(nodes_.silence_limit);
    connection.set_max_line(LineConnection::kMaxLineOfStranger);
    auto& client = clients_.emplace(next_++, Client{.connection = std::move(connection)}).first->second;
    client.connection.send(encode(ToNode(Challenge{client.challenge})));
  }
}

// For a connection that could not be accepted, with the reason in errno: drops the oldest stranger. If all
// are nodes, it waits in the queue of the listener.
void CoordinatorServer::make_room() {
  if (!std::exchange(exhaustion_told_, true)) {
    log(LogLevel::warning,
        fmt::format("the coordinator cannot accept a connection: {}; it drops the oldest connection that has "
                    "not joined the run. If nodes are missing, raise the hard limit (ulimit -Hn)",
                    errno_text(errno)));
  }
  const auto oldest =
      std::ranges::find_if(clients_, [](const auto& client) { return !client.second.has_joined; });
  if (oldest == clients_.end()) {
    accept_pause_ = Deadline(kAcceptPause);
  } else {
    clients_.erase(oldest);
  }
}

// One that answers sends no faster than the one that looks reads.
bool CoordinatorServer::must_wait(const Client& client) const {
  if (!client.has_joined || client.hello.purpose != Purpose::answer) return false;
  const auto asker = looks_.asker_of(client.hello);
  const auto found = asker ? clients_.find(*asker) : clients_.end();
  return found != clients_.end() && found->second.connection.queued() > kMostQueued;
}

void CoordinatorServer::drop(Coordinator::Node node, const std::string& why) {
  const auto now = Coordinator::Clock::now();
  const auto client = clients_.extract(node);
  const auto& hello = client.mapped().hello;
  if (hello.purpose == Purpose::answer) return looks_.fail(hello, why, now);
  looks_.lose(node, now);
  coordinator_.lose(node, why, now);
}

void CoordinatorServer::read(Coordinator::Node node) {
  Client& client = clients_.at(node);
  if (must_wait(client)) return;
  client.connection.advance();
  try {
    while (const auto line = client.connection.take_line()) {
      handle_line(node, *line);
      if (!clients_.contains(node)) return;
    }
  } catch (const LaunchError& error) {
    client.connection.send(encode(ToNode(Refused{error.what()})));
    drop(node, error.what());
    return;
  }
  if (!client.connection.broken().empty()) drop(node, client.connection.broken());
}

void CoordinatorServer::handle_line(Coordinator::Node node, const std::string& line) {
  const auto& client = clients_.at(node);
  if (!client.has_joined) {
    handle_hello(node, line);
  } else if (!client.is_node()) {
    handle_seen(node, line);
  } else {
    coordinator_.handle(node, decode_from_node(line), Coordinator::Clock::now());
  }
}

void CoordinatorServer::handle_hello(Coordinator::Node node, const std::string& line) {
  const Hello hello = decode_hello(line);
  auto& client = clients_.at(node);
  const Challenges challenges{.server = client.challenge, .client = hello.challenge};
  if (!nodes_.secret.accepts(hello.proof, Secret::Side::client, challenges)) {
    throw LaunchError(
        nodes_.secret.empty()
            ? "this run has no secret, but the node has; give all nodes the same LOCKSTEP_SECRET"
            : "the node does not know the secret of this run; give all nodes the same LOCKSTEP_SECRET");
  }
  if (hello.purpose != Purpose::join && nodes_.secret.empty())
    throw LaunchError("this run has no secret, so nobody may look at its ranks from another host");
  client.has_joined = true;
  client.connection.set_max_line(LineConnection::kMaxLine);
  client.connection.send(encode(
      ToNode(Welcome{nodes_.secret.proof(Secret::Side::server, challenges), nodes_.silence_limit.count()})));
  if (hello.purpose != Purpose::join) {
    client.hello = hello;
    client.limit = Deadline(kLookLimit);
    if (hello.purpose == Purpose::answer) return;
    const auto reason = looks_.begin(node, coordinator_.members(), Coordinator::Clock::now());
    if (!reason.empty()) client.connection.send(encode(ToNode(Refused{reason})));
    return;
  }
  const auto refusal = coordinator_.join(node, hello.node, Coordinator::Clock::now());
  if (!refusal.empty()) log(LogLevel::warning, fmt::format("a node was refused: {}", refusal));
}

// Only a connection that answers sends parts; one that looks sends nothing.
void CoordinatorServer::handle_seen(Coordinator::Node node, const std::string& line) {
  const auto& hello = clients_.at(node).hello;
  const auto message = decode_from_node(line);
  const auto* const seen = std::get_if<Seen>(&message);
  if (seen == nullptr || hello.purpose != Purpose::answer)
    throw LaunchError("a connection that looks at ranks carries other messages");
  if (!looks_.add(hello, *seen, Coordinator::Clock::now())) clients_.erase(node);
}

void CoordinatorServer::send_messages() {
  const auto send = [&](const std::vector<Coordinator::Message>& messages) {
    for (const auto& message : messages) {
      const auto client = clients_.find(message.to);
      if (client != clients_.end()) client->second.connection.send(encode(message.what));
    }
  };
  send(coordinator_.take_messages());
  send(looks_.take_messages());
}

void CoordinatorServer::send_alive() {
  if (!alive_pause_.expired()) return;
  alive_pause_ = Deadline(nodes_.silence_limit / 3);
  for (auto& [node, client] : clients_) {
    if (coordinator_.is_waiting(node)) client.connection.send(encode(ToNode(Alive{})));
  }
}

// Messages must arrive, so connections stay open until the others have closed theirs.
void CoordinatorServer::finish_connections() {
  if (!coordinator_.ended()) {
    const ToNode end = End{FailureReport{.reason = "the launcher that coordinates the nodes has ended"}};
    for (auto& [node, client] : clients_) client.connection.send(encode(end));
  }
  listener_.reset();
  std::erase_if(clients_, [](const auto& client) { return !client.second.is_node(); });
  const Deadline deadline(kFinishLimit);
  while (!clients_.empty() && !deadline.expired()) {
    std::vector<pollfd> events;
    for (auto& [node, client] : clients_) {
      client.connection.advance();
      events.push_back({.fd = client.connection.fd(), .events = client.connection.events(), .revents = 0});
    }
    std::erase_if(clients_, [](const auto& client) { return !client.second.connection.broken().empty(); });
    if (!clients_.empty())
      ::poll(events.data(), events.size(), static_cast<int>(deadline.remaining().count()));
  }
}

}  // namespace lockstep::launch
