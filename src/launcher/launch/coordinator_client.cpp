// SPDX-License-Identifier: BSD-3-Clause
#include "launch/coordinator_client.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/host.h"
#include "base/sockets.h"
#include "base/throw_error.h"
#include "launch/coordinator_server.h"
#include "launch/worker_group.h"

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
    if (wait_for(connecting_.get(), POLLOUT, Deadline(milliseconds(0)))) {
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
  while (auto line = connection_.take_line()) {
    auto message = decode_to_node(*line);
    if (const auto* challenge = std::get_if<Challenge>(&message)) {
      answer(*challenge);
      continue;
    }
    if (!welcome_) check_proof(message);
    welcome_ = true;
    return message;
  }
  if (connected_ && !connection_.broken().empty()) {
    if (was_dropped()) {
      start_over();
      return std::nullopt;
    }
    throw_error<LaunchError>(
        "the launcher at {}, which coordinates the nodes, is lost ({}), so the run ends; stopping this node's ranks",
        to_text(nodes_.endpoint), connection_.broken());
  }
  check_welcome();
  return std::nullopt;
}

// A coordinator without descriptors closes connections on which no node has joined yet. Other programs send
// no Challenge.
bool TcpCoordinatorClient::was_dropped() const { return !welcome_ && !challenges_.client.empty(); }

void TcpCoordinatorClient::start_over() {
  const auto reason =
      fmt::format("it closed the connection before this node joined ({})", connection_.broken());
  connection_ = {};
  connected_ = false;
  challenges_ = {};
  try_again(reason);
}

void TcpCoordinatorClient::answer(const Challenge& challenge) {
  if (!challenges_.client.empty()) {
    throw_error<LaunchError>(
        "the program that listens at {} is not a Lockstep launcher: it asks twice for a proof",
        to_text(nodes_.endpoint));
  }
  challenges_ = {.server = challenge.challenge, .client = random_challenge()};
  hello_.challenge = challenges_.client;
  hello_.proof = nodes_.secret.proof(Secret::Side::client, challenges_);
  connection_.send(encode(hello_));
}

// Nothing but a Welcome with a proof, or a refusal, is believed first.
void TcpCoordinatorClient::check_proof(const ToNode& first) const {
  if (std::holds_alternative<Refused>(first)) return;
  const auto* welcome = std::get_if<Welcome>(&first);
  if (welcome != nullptr && nodes_.secret.accepts(welcome->proof, Secret::Side::server, challenges_)) return;
  throw_error<LaunchError>(
      "the launcher at {} does not know the secret of this run; give all nodes the same LOCKSTEP_SECRET",
      to_text(nodes_.endpoint));
}

void TcpCoordinatorClient::check_welcome() const {
  if (!connected_ || welcome_ || !limit_.expired()) return;
  throw_error<LaunchError>(
      "the program that listens at {} is not a Lockstep launcher: it sent nothing within {} ms",
      to_text(nodes_.endpoint), limit_.timeout().count());
}

// A node that connects through the loopback interface is on the coordinator's host.
std::string TcpCoordinatorClient::address() const {
  if (!local_addr_.empty()) return local_addr_;
  const auto own = address_of(connection_.fd()).text();
  if (own.empty()) throw LaunchError("the address of this node is unknown; set local-addr");
  constexpr std::string_view mapped = "::ffff:";  // IPv4
  const auto plain = own.starts_with(mapped) ? own.substr(mapped.size()) : own;
  const bool loopback = plain.starts_with("127.") || plain == "::1";
  return loopback ? nodes_.endpoint.host : plain;
}

void TcpCoordinatorClient::begin_attempt() {
  const auto found = resolve_now(nodes_.endpoint.host, nodes_.endpoint.port);
  limit_ = Deadline(kConnectLimit);  // a name server may have taken longer
  if (!found.error.empty()) {
    try_again(fmt::format("host {} cannot be resolved: {}", nodes_.endpoint.host, found.error));
    return;
  }
  // Each attempt tries the next address of the name.
  connecting_ = begin_connecting(found.addresses[attempts_++ % found.addresses.size()]);
  if (!connecting_) try_again(errno_text(errno));
}

void TcpCoordinatorClient::finish_attempt() {
  if (const int code = connect_error(connecting_.get()); code != 0) {
    connecting_.reset();
    try_again(errno_text(code));
    return;
  }
  connection_ = LineConnection(std::move(connecting_));
  connection_.set_silence_limit(nodes_.silence_limit);
  connected_ = true;
  limit_ = Deadline(kWelcomeLimit);
}

void TcpCoordinatorClient::try_again(const std::string& reason) {
  if (deadline_.expired()) {
    throw_error<LaunchError>(
        "no launcher answers at {} after {} ms: {}. Is node 0's launcher running, and "
        "may this host connect to that port?",
        to_text(nodes_.endpoint), deadline_.timeout().count(), reason);
  }
  limit_ = Deadline(std::min(kPause, deadline_.remaining()));
}

std::unique_ptr<CoordinatorClient> make_client(const LaunchOptions& options, bool is_host) {
  NodeInfo info{.shared = shared_options(options),
                .ranks = options.nproc_per_node,
                .role = options.role,
                .host = host_name(),
                .is_host = is_host,
                .grace_period_ms = options.grace_period.count()};
  if (!options.nodes) {
    return std::make_unique<LocalCoordinatorClient>(coordinator_options(options), info, options.master_addr);
  }
  info.node_rank = options.nodes->node_rank;
  info.is_adopter = options.adopted.has_value();
  if (options.on_loss == OnLoss::oversubscribe) {
    info.memory = memory_identity();
    info.threads = threads_of_ranks(options);
  }
  return std::make_unique<TcpCoordinatorClient>(*options.nodes, Hello{.node = std::move(info)},
                                                options.local_addr);
}

}  // namespace lockstep::launch
