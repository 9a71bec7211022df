// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/peers.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <sstream>
#include <sys/socket.h>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::seconds kAttempt{3};
constexpr std::chrono::milliseconds kPause{50};
constexpr const char* kGreeting = "lockstep-doctor";

// Seconds since 1970, of the clock that people see.
double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string read_line(const UniqueFd& fd, const Deadline& deadline) {
  std::string line;
  while (line.find('\n') == std::string::npos && line.size() < 256 && wait_for(fd.get(), POLLIN, deadline)) {
    std::array<char, 256> buffer{};
    const auto count = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) break;
    line.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return line.substr(0, line.find('\n'));
}

// A line fits into any socket's buffer.
void send_line(const UniqueFd& fd, const std::string& text) {
  const auto line = text + '\n';
  [[maybe_unused]] const auto sent = ::send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL);
}

std::string greeting(const ConnectivityTest& test, std::size_t from) {
  return fmt::format("{} {} {}", kGreeting, test.token, from);
}

SocketAddress listening_address(const ConnectivityTest& test, const Deadline& deadline) {
  const auto& name = test.hosts[test.self];
  const bool is_text =
      !name.empty() && name.find_first_not_of("0123456789abcdefABCDEF.:") == std::string::npos;
  if (is_text) {
    const auto address = resolve(name, deadline).at(0);
    if (address.is_loopback()) return address.with_port(test.port);
  }
  return any_address().with_port(test.port);
}

// Answers the others' greetings with this host's time, in a thread of its own.
class Listener {
 public:
  Listener(const ConnectivityTest& test, const Deadline& deadline)
      : meeting_(test),
        seen_(test.hosts.size()),
        socket_(listen_at(listening_address(test, deadline))),
        thread_(start_thread<std::jthread>("the answers to other hosts",
                                           [this](const std::stop_token& stop) { serve(stop); })) {}

  bool has_seen_all() const {
    for (std::size_t host = 0; host < seen_.size(); ++host) {
      if (host != meeting_.self && !seen_[host]) return false;
    }
    return true;
  }

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!wait_for(socket_.get(), POLLIN, Deadline(kPause))) continue;
      const UniqueFd guest(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (guest) answer(guest);
    }
  }

  void answer(const UniqueFd& guest) {
    const auto line = read_line(guest, Deadline(kAttempt));
    for (std::size_t host = 0; host < seen_.size(); ++host) {
      if (line != greeting(meeting_, host)) continue;
      send_line(guest, fmt::format("{} {:.9f}", greeting(meeting_, meeting_.self), wall_clock()));
      seen_[host] = true;
    }
  }

  const ConnectivityTest& meeting_;
  std::vector<std::atomic<bool>> seen_;
  UniqueFd socket_;
  std::jthread thread_;  // last, so that it ends first
};

// The time of the other host, halfway between asking and answer.
void take_answer(const std::string& line, const std::string& expected, double asked, Peer& peer) {
  const double answered = wall_clock();
  if (!line.starts_with(expected)) {
    peer.error = fmt::format("something else answers there{}", line.empty() ? ", with nothing" : ": " + line);
    return;
  }
  double time = 0;
  std::istringstream(line.substr(expected.size())) >> time;
  peer.offset = time - (asked + answered) / 2;
  peer.uncertainty = (answered - asked) / 2;
  peer.error.clear();
}

void try_address(const ConnectivityTest& test, std::size_t other, const SocketAddress& address,
                 const Deadline& deadline, Peer& peer) {
  const auto connection = connected_socket(address.with_port(test.port), deadline);
  const double asked = wall_clock();
  send_line(connection, greeting(test, test.self));
  take_answer(read_line(connection, deadline), greeting(test, other) + " ", asked, peer);
}

// Never cut short by the end of the test: the error of the last attempt is what people read.
void try_peer(const ConnectivityTest& test, std::size_t other, Peer& peer) {
  const Deadline deadline(kAttempt);
  try {
    for (const auto& address : resolve(peer.host, deadline)) {
      try {
        try_address(test, other, address, deadline, peer);
      } catch (const Error& error) {
        peer.error = error.what();
      }
      if (peer.error.empty()) return;
    }
  } catch (const Error& error) {
    peer.error = error.what();
  }
}

std::size_t number_in(const std::string& text) {
  if (const auto value = parse_number<std::size_t>(text)) return *value;
  throw_error<ArgumentError>("\"{}\" is not a number", text);
}

bool is_address(const std::string& name) {
  in6_addr either{};
  return ::inet_pton(AF_INET, name.c_str(), &either) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &either) == 1;
}

}  // namespace

std::vector<SocketAddress> resolve(const std::string& name, const Deadline& deadline) {
  if (is_address(name)) return resolve_now(name).addresses;  // at once
  // Left behind when it takes too long: there is no way to stop it.
  auto task = std::make_shared<std::packaged_task<Resolution()>>([name] { return resolve_now(name); });
  auto answer = task->get_future();
  start_thread<std::thread>("the look-up of " + name, [task] { (*task)(); }).detach();
  if (answer.wait_for(deadline.remaining()) != std::future_status::ready) {
    throw_error<Error>("{} cannot be resolved: no answer within {} ms", name, deadline.timeout().count());
  }
  auto result = answer.get();
  if (!result.error.empty()) throw_error<Error>("{} cannot be resolved: {}", name, result.error);
  return std::move(result.addresses);
}

UniqueFd listen_at(const SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error("socket: " + errno_text(errno));
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.is_ipv6()) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    throw_error<Error>("listening on {} port {}: {}", address.text(), address.port(), errno_text(errno));
  }
  return fd;
}

UniqueFd connected_socket(const SocketAddress& address, const Deadline& deadline) {
  if (auto fd = connect_to(address, deadline)) return fd;
  throw_error<Error>("connecting to {} port {}: {}", address.text(), address.port(), errno_text(errno));
}

std::string to_text(const ConnectivityTest& test) {
  return fmt::format("{},{},{},{}", test.token, test.self, test.port, fmt::join(test.hosts, ","));
}

ConnectivityTest parse_connectivity_test(const std::string& text) {
  const auto words = split(text, ',');
  if (words.size() < 4) throw_error<ArgumentError>("--meeting {}: too short", text);
  ConnectivityTest test{.token = words[0],
                        .self = number_in(words[1]),
                        .port = static_cast<int>(number_in(words[2])),
                        .hosts = {words.begin() + 3, words.end()}};
  if (test.self >= test.hosts.size() || test.port < 1 || test.port > 65535) {
    throw_error<ArgumentError>("--meeting {}: a number is out of range", text);
  }
  return test;
}

std::vector<Peer> test_connectivity(const ConnectivityTest& test, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const Listener listener(test, Deadline(kAttempt));
  std::vector<Peer> all;
  for (const auto& host : test.hosts) all.push_back({.host = host, .error = "not tried"});
  all[test.self].error.clear();
  bool done = false;
  do {
    done = listener.has_seen_all();
    for (std::size_t host = 0; host < all.size(); ++host) {
      if (all[host].error.empty()) continue;
      try_peer(test, host, all[host]);
      done = false;
    }
    if (!done) std::this_thread::sleep_for(std::min(kPause, deadline.remaining()));
  } while (!done && !deadline.expired());
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(test.self));
  return all;
}

Findings check_peers(const std::vector<Peer>& peers, int port) {
  Findings findings;
  for (const auto& peer : peers) {
    const auto check = "host " + peer.host;
    if (peer.error.empty()) {
      findings.push_back(ok(check, fmt::format("reached at port {}", port)));
    } else {
      findings.push_back(problem(check, peer.error,
                                 fmt::format("check the name (getent hosts {}), and firewalls for port {} "
                                             "and for the ports above 1024 between these hosts",
                                             peer.host, port)));
    }
  }
  return findings;
}

}  // namespace lockstep::doctor
