// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/remote_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "launch/launch_limits.h"
#include "launch/run_store_server.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using launch::StoreReply;
using launch::StoreRequest;
using std::chrono::milliseconds;
using RequestKind = StoreRequest::Kind;
using ReplyStatus = StoreReply::Status;

// The launcher answers within milliseconds, or after the wait that a request names. Meanwhile it may replace a rank.
constexpr milliseconds kReplyLimit = launch::kStoreAnswerLimit;
// Of one request that waits; other threads may use the connection between two.
constexpr milliseconds kOneWait = 20ms;
constexpr milliseconds kPauseToConnect = 10ms;
constexpr milliseconds kOneAttempt = 1s;

std::string as_text(const RemoteStore::Bytes& value) { return {value.begin(), value.end()}; }

RemoteStore::Bytes as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

UniqueFd connect(const Endpoint& server, const Deadline& deadline) {
  while (true) {
    const auto found = resolve_now(server.host, server.port);
    auto reason = found.error;
    for (const auto& address : found.addresses) {
      auto socket = connect_to(address, Deadline(std::min(kOneAttempt, deadline.remaining())));
      if (socket) return socket;
      reason = errno_text(errno);
    }
    if (deadline.expired()) {
      throw_error<RendezvousError>(
          ErrorDetails{.host = server.host},
          "the launcher of node 0, which serves the store of the run, cannot be reached at {}:{} within {} ms: {}; may this "
          "host connect to that port?",
          server.host, server.port, deadline.timeout().count(), reason);
    }
    std::this_thread::sleep_for(kPauseToConnect);
  }
}

}  // namespace

RemoteStore::RemoteStore(Endpoint server, std::string token, const Deadline& deadline)
    : server_(std::move(server)), token_(std::move(token)), socket_(connect(server_, deadline)) {
  const MutexLock lock(mutex_);
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  launch::decode_store_reply(exchange(token_ + "\n"));
}

c10::intrusive_ptr<c10d::Store> RemoteStore::clone() {
  return c10::make_intrusive<RemoteStore>(server_, token_, Deadline(getTimeout()));
}

void RemoteStore::throw_lost(const std::string& reason) const {
  throw_error<Error>(
      "the launcher of node 0, which serves the store of the run at {}:{}, is lost ({}); look for its error",
      server_.host, server_.port, reason);
}

StoreReply RemoteStore::ask(const StoreRequest& request) {
  const auto line = encode(request) + "\n";
  if (line.size() > launch::LineConnection::kMaxLine) {
    throw_error<Error>(
        "the store of the run: key \"{}\" has a value of {}, but a request has at most {} in hexadecimal digits; "
        "pass larger values by collective calls, such as broadcast_object()",
        request.keys.empty() ? "" : request.keys.front(), bytes_text(request.value.size()),
        bytes_text(launch::LineConnection::kMaxLine));
  }
  const MutexLock lock(mutex_);
  if (!socket_) throw_lost("its connection was closed");
  try {
    return launch::decode_store_reply(exchange(line));
  } catch (const std::exception&) {
    socket_.reset();  // the reply may come later
    throw;
  }
}

std::string RemoteStore::exchange(const std::string& line) {
  const Deadline deadline(kReplyLimit);
  for (std::size_t sent = 0; sent < line.size();) {
    const auto count = ::send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EAGAIN && errno != EINTR) {
      throw_lost(errno_text(errno));
    } else if (!wait_for(socket_.get(), POLLOUT, deadline)) {
      throw_lost("it does not read");
    }
  }
  return receive_line();
}

std::string RemoteStore::receive_line() {
  const Deadline deadline(kReplyLimit);
  std::array<char, 4096> bytes;
  while (true) {
    if (const auto end = received_.find('\n'); end != std::string::npos) {
      auto line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (!wait_for(socket_.get(), POLLIN, deadline))
      throw_lost(fmt::format("it has not answered for {} ms", kReplyLimit.count()));
    const auto count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0) throw_lost("its connection closed");
    if (count > 0) {
      received_.append(bytes.data(), static_cast<std::size_t>(count));
    } else if (errno != EAGAIN && errno != EINTR) {
      throw_lost(errno_text(errno));
    }
  }
}

void RemoteStore::set(const std::string& key, const Bytes& value) {
  ask({.kind = RequestKind::set, .value = as_text(value), .keys = {key}});
}

RemoteStore::Bytes RemoteStore::compareSet(const std::string& key, const Bytes& expected,
                                           const Bytes& desired) {
  return as_bytes(ask({.kind = RequestKind::compare_set,
                       .expected = as_text(expected),
                       .value = as_text(desired),
                       .keys = {key}})
                      .value());
}

RemoteStore::Bytes RemoteStore::get(const std::string& key) {
  const Deadline deadline(getTimeout());
  while (true) {
    const auto reply = ask({.kind = RequestKind::get, .keys = {key}});
    if (reply.status == ReplyStatus::done) return as_bytes(reply.value());
    wait({key}, getTimeout() == kNoTimeout ? kNoTimeout : std::max(deadline.remaining(), milliseconds(1)));
  }
}

std::vector<RemoteStore::Bytes> RemoteStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  const auto reply = ask({.kind = RequestKind::get_all, .keys = keys});
  std::vector<Bytes> values;
  if (reply.status == ReplyStatus::done) {
    for (const auto& value : reply.values) values.push_back(as_bytes(value));
  } else {  // one was removed meanwhile
    for (const auto& key : keys) values.push_back(get(key));
  }
  return values;
}

std::int64_t RemoteStore::add(const std::string& key, std::int64_t value) {
  const auto reply = ask({.kind = RequestKind::add, .number = value, .keys = {key}});
  if (reply.status == ReplyStatus::done) return reply.number;
  throw_error<Error>("the store of the run: \"{}\" is no number to which add() could add {}", key, value);
}

bool RemoteStore::deleteKey(const std::string& key) {
  return ask({.kind = RequestKind::remove, .keys = {key}}).number != 0;
}

bool RemoteStore::check(const std::vector<std::string>& keys) {
  return ask({.kind = RequestKind::check, .keys = keys}).number != 0;
}

std::int64_t RemoteStore::getNumKeys() { return ask({.kind = RequestKind::count}).number; }

void RemoteStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  const Deadline deadline(timeout);
  while (true) {
    const auto limit = timeout == kNoTimeout ? kOneWait : std::min(deadline.remaining(), kOneWait);
    const auto reply = ask({.kind = RequestKind::wait, .number = limit.count(), .keys = keys});
    if (reply.status == ReplyStatus::done) return;
    if (timeout != kNoTimeout && deadline.expired()) {
      C10_THROW_ERROR(DistStoreError, fmt::format("wait timeout after {} ms, keys: {}", timeout.count(),
                                                  fmt::join(keys, ", ")));
    }
  }
}

}  // namespace lockstep::rendezvous
