// SPDX-License-Identifier: BSD-3-Clause
#include "base/fd_passing.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/sockets.h"
#include "base/throw_error.h"

namespace lockstep {

namespace {

constexpr std::size_t kMostFds = 8;

[[noreturn]] void fail(const char* step) {
  throw_error<Error>("local socket: {}: {}", step, errno_text(errno));
}

UniqueFd local_socket() {
  // Sequenced packets keep each number with its descriptors.
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) fail("socket");
  return fd;
}

void await(int fd, short events, const Deadline& deadline) {
  if (!wait_for(fd, events, deadline)) {
    throw_error<TimeoutError>("local socket: another rank of this host did not answer within {} ms",
                              deadline.timeout().count());
  }
}

bool is_of(uid_t user, int socket) {
  const auto peer = peer_process(socket);
  if (!peer) fail("SO_PEERCRED");
  if (peer->uid == user) return true;
  log(LogLevel::warning,
      fmt::format("a process of another user (pid {}, uid {}) tried to join this run; it was "
                  "rejected",
                  peer->pid, peer->uid));
  return false;
}

// connect() waits for room in the listener's queue no longer than this.
void limit_waiting(int socket, const Deadline& deadline) {
  const auto limit = std::max(deadline.remaining(), std::chrono::milliseconds(1));  // 0 would be no limit
  const timeval time{.tv_sec = limit.count() / 1000, .tv_usec = limit.count() % 1000 * 1000};
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) != 0) fail("SO_SNDTIMEO");
}

union ControlBuffer {
  cmsghdr align;
  std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> bytes;
};

std::vector<UniqueFd> fds_in(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const auto count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

LocalListener listen_locally() {
  LocalListener listener{.socket = local_socket(), .name = {}};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An address of the family alone makes the kernel draw a free abstract name.
  if (::bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) != 0) {
    fail("bind");
  }
  if (::listen(listener.socket.get(), SOMAXCONN) != 0) fail("listen");
  socklen_t length = sizeof(address);
  if (::getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("getsockname");
  }
  listener.name.assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  return listener;
}

UniqueFd accept_local(const LocalListener& listener, const Deadline& deadline, uid_t user) {
  while (wait_for(listener.socket.get(), POLLIN, deadline)) {
    UniqueFd connection(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection && errno != EINTR && errno != ECONNABORTED) fail("accept");
    if (connection && is_of(user, connection.get())) return connection;
  }
  return {};
}

UniqueFd connect_locally(const std::string& name, const Deadline& deadline, uid_t user) {
  const auto address = abstract_address(name);
  while (true) {
    UniqueFd connection = local_socket();
    limit_waiting(connection.get(), deadline);
    if (::connect(connection.get(), address.get(), address.length) == 0) {
      if (!is_of(user, connection.get())) throw Error("local socket: it belongs to another user");
      return connection;
    }
    if (errno != EINTR && errno != EAGAIN) fail("connect");
    if (deadline.expired()) throw TimeoutError("local socket: rank 0 did not accept in time");
  }
}

void send_fds(int socket, std::uint32_t number, std::span<const int> fds, const Deadline& deadline) {
  if (fds.size() > kMostFds) throw Error("local socket: too many descriptors for one message");
  ControlBuffer control{};
  iovec data{.iov_base = &number, .iov_len = sizeof(number)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    auto* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  while (true) {
    await(socket, POLLOUT, deadline);
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return;
    if (errno != EINTR && errno != EAGAIN) fail("sendmsg");
  }
}

FdMessage receive_fds(int socket, const Deadline& deadline) {
  FdMessage result;
  while (true) {
    ControlBuffer control{};
    iovec data{.iov_base = &result.number, .iov_len = sizeof(result.number)};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    await(socket, POLLIN, deadline);
    const auto count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) throw PeerLost("local socket: the other side has closed");
    result.fds = fds_in(message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      throw Error(
          "local socket: not all descriptors could be received; raise the limit of open files, `ulimit -n`");
    }
    const bool cut = (message.msg_flags & MSG_TRUNC) != 0;
    if (cut || count != sizeof(result.number)) throw Error("local socket: a message of the wrong size");
    return result;
  }
}

}  // namespace lockstep
