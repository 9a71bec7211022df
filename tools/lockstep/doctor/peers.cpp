// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/peers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <poll.h>
#include <sstream>
#include <sys/socket.h>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "doctor/sockets.h"

namespace lockstep::cli {
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
  while (line.find('\n') == std::string::npos && line.size() < 256 && wait_for(fd, POLLIN, deadline)) {
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

std::string greeting(const Meeting& meeting, std::size_t from) {
  return fmt::format("{} {} {}", kGreeting, meeting.token, from);
}

SocketAddress listening_address(const Meeting& meeting, const Deadline& deadline) {
  const auto& name = meeting.hosts[meeting.self];
  const bool is_text =
      !name.empty() && name.find_first_not_of("0123456789abcdefABCDEF.:") == std::string::npos;
  if (is_text) {
    const auto address = resolve(name, deadline).at(0);
    if (address.is_loopback()) return address.with_port(meeting.port);
  }
  return any_address().with_port(meeting.port);
}

// Answers the others' greetings with this host's time, in a thread of its own.
class Listener {
 public:
  Listener(const Meeting& meeting, const Deadline& deadline)
      : meeting_(meeting),
        seen_(meeting.hosts.size()),
        socket_(listen_at(listening_address(meeting, deadline))),
        thread_([this](const std::stop_token& stop) { serve(stop); }) {}

  bool has_seen_all() const {
    for (std::size_t host = 0; host < seen_.size(); ++host) {
      if (host != meeting_.self && !seen_[host]) return false;
    }
    return true;
  }

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!wait_for(socket_, POLLIN, Deadline(kPause))) continue;
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

  const Meeting& meeting_;
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

void try_address(const Meeting& meeting, std::size_t other, const SocketAddress& address,
                 const Deadline& deadline, Peer& peer) {
  const auto connection = connect_to(address.with_port(meeting.port), deadline);
  const double asked = wall_clock();
  send_line(connection, greeting(meeting, meeting.self));
  take_answer(read_line(connection, deadline), greeting(meeting, other) + " ", asked, peer);
}

// Never cut short by the end of the meeting: the error of the last attempt is what people read.
void try_peer(const Meeting& meeting, std::size_t other, Peer& peer) {
  const Deadline deadline(kAttempt);
  try {
    for (const auto& address : resolve(peer.host, deadline)) {
      try {
        try_address(meeting, other, address, deadline, peer);
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
  std::size_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end) throw ArgumentError(fmt::format("\"{}\" is no number", text));
  return value;
}

}  // namespace

std::string meeting_text(const Meeting& meeting) {
  return fmt::format("{},{},{},{}", meeting.token, meeting.self, meeting.port, fmt::join(meeting.hosts, ","));
}

Meeting parse_meeting(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  if (words.size() < 4) throw ArgumentError(fmt::format("--meeting {}: too short", text));
  Meeting meeting{.token = words[0],
                  .self = number_in(words[1]),
                  .port = static_cast<int>(number_in(words[2])),
                  .hosts = {words.begin() + 3, words.end()}};
  if (meeting.self >= meeting.hosts.size() || meeting.port < 1 || meeting.port > 65535) {
    throw ArgumentError(fmt::format("--meeting {}: a number is out of range", text));
  }
  return meeting;
}

std::vector<Peer> meet(const Meeting& meeting, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const Listener listener(meeting, Deadline(kAttempt));
  std::vector<Peer> all;
  for (const auto& host : meeting.hosts) all.push_back({.host = host, .error = "not tried"});
  all[meeting.self].error.clear();
  bool done = false;
  do {
    done = listener.has_seen_all();
    for (std::size_t host = 0; host < all.size(); ++host) {
      if (all[host].error.empty()) continue;
      try_peer(meeting, host, all[host]);
      done = false;
    }
    if (!done) std::this_thread::sleep_for(std::min(kPause, deadline.remaining()));
  } while (!done && !deadline.expired());
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(meeting.self));
  return all;
}

Findings check_peers(const std::vector<Peer>& peers, int port) {
  Findings findings;
  for (const auto& peer : peers) {
    const auto check = "host " + peer.host;
    if (peer.error.empty()) {
      findings.push_back(ok(check, fmt::format("reached at port {}", port)));
    } else {
      findings.push_back(
          problem(check, peer.error,
                  fmt::format("look at the name (getent hosts {}), and at firewalls for port {} and "
                              "for the ports above 1024 between these hosts",
                              peer.host, port)));
    }
  }
  return findings;
}

}  // namespace lockstep::cli
