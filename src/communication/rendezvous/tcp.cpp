// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/tcp.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/log.h>
#include <lockstep/base/mutex.h>

#include "base/limits.h"
#include "base/process_state.h"
#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kLogConnectingAfter = 10s;
// A connection of rank 0 to itself needs no more.
constexpr auto kOwnLimit = 5'000ms;
// A store answers within this time, plus the second one for each rank that connects at the same time. Then the
// listener may be another program.
constexpr auto kStoreLimit = 2'000ms;
constexpr auto kStoreLimitPerRank = 2ms;
constexpr auto kClosedPause = 50ms;

bool is_ipv4(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

// A connection, or the reason why there is none.
struct Connection {
  UniqueFd socket{};
  std::string reason{};
};

Connection try_server(const Endpoint& server, std::chrono::milliseconds limit) {
  const auto found = resolve_now(server.host, server.port);
  Connection connection{.reason = found.error};
  for (const auto& address : found.addresses) {
    connection.socket = connect_to(address, Deadline(limit));
    if (connection.socket) break;
    connection.reason = errno_text(errno);
  }
  return connection;
}

// c10d's own client retries once per second and prints a warning each time.
Connection wait_for_server(const Endpoint& server, int rank, const Deadline& deadline) {
  auto pause = 5ms;
  bool said = false;
  const auto started = Deadline::Clock::now();
  while (true) {
    auto connection =
        try_server(server, std::clamp<std::chrono::milliseconds>(deadline.remaining(), 10ms, 1s));
    if (connection.socket || deadline.expired()) return connection;
    if (!said && Deadline::Clock::now() - started > kLogConnectingAfter) {
      said = true;
      log(LogLevel::warning, fmt::format("rank {} is still waiting for rank 0 at {}:{} ({})", rank,
                                         server.host, server.port, connection.reason));
    }
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(pause, deadline.remaining()));
    pause = std::min<std::chrono::milliseconds>(pause * 2, 100ms);
  }
}

// The store has a connection of each rank. The soft limit is often 1024, for programs that use select().
void allow_connections(int world_size) {
  constexpr rlim_t kOthers = 256;  // files, libraries, connections to other ranks
  const auto needed = static_cast<rlim_t>(world_size) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    throw_error<RendezvousError>(
        "rank 0 serves the connections of {} ranks and may need {} file descriptors, but its hard "
        "limit is {}; raise it (ulimit -Hn {}, LimitNOFILE= of a systemd unit, --ulimit nofile= of "
        "a container)",
        world_size, needed, limit.rlim_max, needed);
  }
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw_error<RendezvousError>("rank 0 cannot raise its limit of file descriptors to {} for {} ranks: {}",
                               limit.rlim_max, world_size, errno_text(errno));
}

// Nobody is about to enable it, so there is nothing to wait for.
void require_loopback(const std::string& host, int rank) {
  if (host != "localhost" && host != "::1" && !host.starts_with("127.")) return;
  const auto interfaces = network_interfaces();
  const auto is_up = [](const Interface& interface) { return interface.loopback && interface.up; };
  if (std::ranges::any_of(interfaces, is_up)) return;
  throw_error<RendezvousError>(
      ErrorDetails{.host = host},
      "rank {} cannot use {}: the loopback interface of this host or container is down; enable it: ip link set lo up",
      rank, host);
}

c10::intrusive_ptr<c10d::Store> make_store(const Endpoint& server, c10d::TCPStoreOptions options,
                                           const std::string& who) {
  options.port = static_cast<std::uint16_t>(server.port);
  try {
    return c10::make_intrusive<c10d::TCPStore>(server.host, options);
  } catch (const std::exception& error) {
    throw_error<RendezvousError>(ErrorDetails{.host = server.host},
                                 "{}: the store at {}:{} cannot be used: {}", who, server.host, server.port,
                                 first_line_of(exception_text(error)));
  }
}

// How a server answers to the greeting of c10d's store client.
struct Greeting {
  enum class Kind {
    store,   // it is a store
    other,   // it is none: `answer` is its first line
    silent,  // nothing within the limit
    closed,  // it has closed the connection
  };
  Kind kind = Kind::silent;
  std::string answer{};
};

// c10d's client begins with these bytes in each release that the project supports: the number 0 and a magic
// number, which say that it is a client, the number 13, and a number that the store sends back.
constexpr std::string_view kGreeting("\x00\xce\xf7\x85\x3c\x0dLOCK", 10);
constexpr std::string_view kEcho = "LOCK";
constexpr std::chrono::milliseconds kGreetingLimit{500};
// Most servers answer to it or have sent a greeting before.
constexpr std::string_view kRequest = "GET / HTTP/1.0\r\n\r\n";

// Empty if the server has closed the connection. Nothing if the deadline has passed.
std::optional<std::string> receive(int socket, const Deadline& deadline) {
  std::array<char, 80> bytes{};
  if (!wait_for(socket, POLLIN, deadline)) return std::nullopt;
  const auto count = ::recv(socket, bytes.data(), bytes.size(), 0);
  return std::string(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
}

std::string shown_line(std::string_view bytes) {
  std::string line(bytes.substr(0, bytes.find_first_of("\r\n")));
  std::ranges::replace_if(
      line, [](unsigned char letter) { return std::isprint(letter) == 0; }, '?');
  return line;
}

Greeting answer_to_greeting(int socket, const Deadline& deadline) {
  using Kind = Greeting::Kind;
  auto answer = receive(socket, deadline);
  // The four bytes may arrive one after the other.
  while (answer && !answer->empty() && *answer != kEcho && kEcho.starts_with(*answer)) {
    const auto rest = receive(socket, deadline);
    if (!rest || rest->empty()) break;
    *answer += *rest;
  }
  if (!answer) return {.kind = Kind::silent};
  if (answer->empty()) return {.kind = Kind::closed};
  if (*answer == kEcho) return {.kind = Kind::store};
  return {.kind = Kind::other, .answer = shown_line(*answer)};
}

Greeting greet(int socket, const Deadline& deadline) {
  if (::send(socket, kGreeting.data(), kGreeting.size(), MSG_NOSIGNAL) < 0)
    return {.kind = Greeting::Kind::closed};
  return answer_to_greeting(socket, deadline);
}

[[noreturn]] void throw_nobody(const Endpoint& server, const std::string& who, const std::string& reason,
                               const Deadline& deadline) {
  throw_error<RendezvousError>(
      ErrorDetails{.ranks = {0}, .host = server.host},
      "{}: rank 0 has not arrived: nobody listens at {}:{} ({}) within {} ms. Is rank 0 running, and are "
      "MASTER_ADDR and MASTER_PORT the same for all?",
      who, server.host, server.port, reason, deadline.timeout().count());
}

[[noreturn]] void throw_foreign(const Endpoint& server, const std::string& who, const std::string& answer) {
  throw_error<RendezvousError>(
      ErrorDetails{.host = server.host},
      "{}: another program listens at {}:{}, where rank 0 is expected: it answers \"{}\". Choose another "
      "MASTER_PORT, the same for all ranks, or let `lockstep run` choose a free one",
      who, server.host, server.port, answer);
}

std::string suspicion(const Endpoint& server, const std::string& who) {
  return fmt::format(
      "{}: what listens at {}:{} does not answer as the store of rank 0; is another program using this "
      "MASTER_PORT, is rank 0 stopped, or is its name server slow?",
      who, server.host, server.port);
}

// c10d's client waits without a limit for the answer to its greeting, whoever listens there.
void await_store(const Endpoint& server, int rank, int world_size, const Deadline& deadline) {
  using Kind = Greeting::Kind;
  const auto who = numbered_rank(rank, world_size);
  const auto limit = kStoreLimit + world_size * kStoreLimitPerRank;
  const auto next_limit = [&] {
    return Deadline(std::min<std::chrono::milliseconds>(limit, deadline.remaining()));
  };
  const Deadline patience(limit);
  for (bool probed = false;;) {
    const auto [socket, reason] = wait_for_server(server, rank, deadline);
    if (!socket) throw_nobody(server, who, reason, deadline);
    auto greeting = greet(socket.get(), next_limit());
    // A store with a slow name server needs seconds for each further connection.
    if (greeting.kind == Kind::silent && !std::exchange(probed, true)) {
      const auto answer = answer_of_foreign_server(server);
      if (!answer.empty()) throw_foreign(server, who, answer);
      if (!deadline.expired()) log(LogLevel::warning, suspicion(server, who));
    }
    while (greeting.kind == Kind::silent && !deadline.expired()) {
      check_wait();
      greeting = answer_to_greeting(socket.get(), next_limit());
    }
    if (greeting.kind == Kind::store) return;
    if (!greeting.answer.empty()) throw_foreign(server, who, greeting.answer);
    if (deadline.expired()) {
      throw_error<RendezvousError>(ErrorDetails{.ranks = {0}, .host = server.host},
                                   "{} It gave no answer within {} ms", suspicion(server, who),
                                   deadline.timeout().count());
    }
    // A store that ends closes connections. c10d's client knows more of a server that always does.
    if (patience.expired()) return log(LogLevel::warning, suspicion(server, who));
    check_wait();
    std::this_thread::sleep_for(kClosedPause);
  }
}

}  // namespace

Listener listen_on(int port, const std::string& host) {
  Listener listener{.socket = bound_socket(static_cast<std::uint16_t>(port), {.only_ipv4 = is_ipv4(host)})};
  if (!listener.socket || ::listen(listener.socket.get(), SOMAXCONN) != 0) {
    const char* advice =
        errno == EACCES
            ? "Permission denied; choose a MASTER_PORT above 1023"
            : "Another program uses it, or another process has RANK=0 too; choose another MASTER_PORT, or "
              "let `lockstep run` choose a free one";
    throw_error<RendezvousError>("rank 0 cannot listen on port {}: {}. {}", port, errno_text(errno), advice);
  }
  listener.port = bound_port(listener.socket.get());
  return listener;
}

c10::intrusive_ptr<c10d::Store> serve_store(Listener listener, const std::string& host, int world_size,
                                            const Deadline& deadline) {
  allow_connections(world_size);
  require_loopback(host, 0);
  const Endpoint server{host, listener.port};
  const auto [socket, reason] =
      wait_for_server(server, 0, Deadline(std::min(kOwnLimit, deadline.remaining())));
  if (!socket) {
    throw_error<RendezvousError>(
        ErrorDetails{.host = host},
        "rank 0 listens on port {} but cannot reach itself at {}:{} ({}); MASTER_ADDR "
        "must be an address of the host that rank 0 runs on",
        server.port, host, server.port, reason);
  }
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.timeout = deadline.timeout();
  options.masterListenFd = listener.socket.release();
  return make_store(server, options, "rank 0");
}

c10::intrusive_ptr<c10d::Store> join_store(const Endpoint& server, int rank, int world_size,
                                           const Deadline& deadline, bool is_counted) {
  require_loopback(server.host, rank);
  await_store(server, rank, world_size, deadline);
  c10d::TCPStoreOptions options;
  options.waitWorkers = is_counted;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.timeout = deadline.timeout();
  return make_store(server, options, fmt::format("rank {}", rank));
}

std::string answer_of_foreign_server(const Endpoint& server) {
  const Deadline deadline(kGreetingLimit);
  for (const auto& address : resolve_now(server.host, server.port).addresses) {
    const auto socket = connect_to(address, deadline);
    if (!socket) continue;
    if (::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) continue;
    if (const auto bytes = receive(socket.get(), deadline); bytes && !bytes->empty())
      return shown_line(*bytes);
  }
  return "";
}

namespace {

constexpr int kFatal = 3;

// LibTorch's level is one for the process. LibTorch reads it without an atomic operation, on any thread.
int exchange_level(int level) {
  return std::atomic_ref(FLAGS_caffe2_log_level).exchange(level, std::memory_order_relaxed);
}

struct Silence {
  Mutex mutex;
  int uses LOCKSTEP_GUARDED_BY(mutex) = 0;
  int former_level LOCKSTEP_GUARDED_BY(mutex) = 0;
};

Silence& silence() {
  static Silence shared;
  return shared;
}

}  // namespace

QuietC10d::QuietC10d()
    : is_on_(!is_logged(LogLevel::debug) && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
  if (!is_on_) return;
  const MutexLock lock(silence().mutex);
  if (silence().uses++ == 0) silence().former_level = exchange_level(kFatal);
}

QuietC10d::~QuietC10d() {
  if (!is_on_) return;
  const MutexLock lock(silence().mutex);
  if (--silence().uses == 0) exchange_level(silence().former_level);
}

}  // namespace lockstep::rendezvous
