// SPDX-License-Identifier: BSD-3-Clause
#include "launch/view_socket.h"

#include <array>
#include <cerrno>
#include <sys/socket.h>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/sockets.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

constexpr int kViewBacklog = 8;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of all hosts

// In containers that share a network, several launchers have the same pid.
SocketAddress address_of_launcher(int pid) {
  std::array<char, 64> space{};
  (void)!::readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  return abstract_address(fmt::format("lockstep launcher {} {}", space.data(), pid));
}

bool is_of(uid_t user, int socket) {
  const auto peer = peer_process(socket);
  return peer && peer->uid == user;
}

UniqueFd local_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// Empty, with the reason in errno, if there is no such launcher of this user. A queue that is full (EAGAIN) is
// that of a launcher that does not answer.
UniqueFd connect_to_launcher(int pid, uid_t user) {
  const auto address = address_of_launcher(pid);
  auto socket = local_socket();
  if (!socket || ::connect(socket.get(), address.get(), address.length) != 0) return {};
  if (is_of(user, socket.get())) return socket;
  errno = EPERM;
  return {};
}

[[noreturn]] void fail(int pid, const std::string& why) {
  throw_error<LaunchError>(
      "the launcher of this host (pid {}) {}; without --hosts the ranks of this host are shown", pid, why);
}

void add(std::map<int, HostView>& hosts, Seen seen) {
  auto& host = hosts[seen.host];
  host.name = std::move(seen.name);
  host.problem = std::move(seen.problem);
  host.after_ms = seen.after_ms;
  if (!seen.text.empty()) host.parts.push_back(std::move(seen.text));
}

}  // namespace

UniqueFd listen_for_views() {
  const auto address = address_of_launcher(::getpid());
  auto socket = local_socket();
  const bool listens = socket && ::bind(socket.get(), address.get(), address.length) == 0 &&
                       ::listen(socket.get(), kViewBacklog) == 0;
  return listens ? std::move(socket) : UniqueFd();
}

UniqueFd accept_view(int listener, uid_t user) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return socket && is_of(user, socket.get()) ? std::move(socket) : UniqueFd();
}

bool can_be_asked(int pid, uid_t user) { return connect_to_launcher(pid, user) || errno == EAGAIN; }

LauncherQuestion::LauncherQuestion(int pid, const Deadline& deadline) : pid_(pid), deadline_(deadline) {
  auto socket = connect_to_launcher(pid, ::geteuid());
  if (!socket) fail(pid, errno == EAGAIN ? "does not answer: it may be stopped" : "cannot be asked any more");
  connection_ = LineConnection(std::move(socket));
}

// Whether the answer is complete.
bool LauncherQuestion::take_lines() {
  while (const auto line = connection_.take_line()) {
    bytes_ += line->size();
    if (bytes_ > kMostBytes) fail(pid_, "sends more than can be shown");
    auto message = decode_to_node(*line);
    if (std::holds_alternative<End>(message)) return true;
    if (auto* const seen = std::get_if<Seen>(&message)) add(hosts_, std::move(*seen));
  }
  return false;
}

std::optional<std::vector<HostView>> LauncherQuestion::wait(const Deadline& until) {
  while (!take_lines()) {
    if (!connection_.broken().empty()) fail(pid_, "has ended");
    if (deadline_.expired()) {
      fail(pid_,
           fmt::format("does not answer within {} s: it may be stopped", deadline_.timeout().count() / 1000));
    }
    if (until.expired()) return std::nullopt;
    (void)wait_for(connection_.fd(), POLLIN, deadline_.remaining() < until.remaining() ? deadline_ : until);
    connection_.advance();
  }
  std::vector<HostView> all;
  for (auto& [number, host] : hosts_) all.push_back(std::move(host));
  return all;
}

}  // namespace lockstep::launch
