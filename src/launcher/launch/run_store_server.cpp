// SPDX-License-Identifier: BSD-3-Clause
#include "launch/run_store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using RequestKind = StoreRequest::Kind;
using ReplyStatus = StoreReply::Status;

constexpr int kMostWaiting = 1024;
constexpr milliseconds kLongestWait{60'000};  // of one request
// Connections that have not shown the token. Beyond it the oldest are dropped, so that they leave descriptors for ranks.
constexpr std::size_t kMostStrangers = 128;
// Ranks send the token at once, so it is read before so many others have come.
constexpr int kMostAcceptedAtOnce = 64;
// Before another attempt to accept a connection for which there is no descriptor.
constexpr milliseconds kPauseToAccept{1'000};
constexpr std::array kKinds{"set",    "compare_set", "get",   "get_all", "add",
                            "remove", "check",       "count", "wait"};
constexpr std::array kStatuses{"done", "missing", "no_number"};

[[noreturn]] void refuse(std::string_view line) {
  throw_error<LaunchError>("this is no message about the store of a run: \"{}\"", line.substr(0, 80));
}

std::string to_hex(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string word = "x";
  word.reserve(1 + 2 * text.size());
  for (const unsigned char byte : text) {
    word += digits[byte / 16U];
    word += digits[byte % 16U];
  }
  return word;
}

int digit_of(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

std::string from_hex(std::string_view word) {
  if (word.size() % 2 == 0 || word.front() != 'x') refuse(word);
  std::string text;
  text.reserve(word.size() / 2);
  for (std::size_t at = 1; at < word.size(); at += 2) {
    const int high = digit_of(word[at]);
    const int low = digit_of(word[at + 1]);
    if (high < 0 || low < 0) refuse(word);
    text += static_cast<char>(high * 16 + low);
  }
  return text;
}

template <class Value, std::size_t size>
Value named(const std::array<const char*, size>& names, const std::string& name) {
  const auto found = std::ranges::find(names, std::string_view(name));
  if (found == names.end()) refuse(name);
  return static_cast<Value>(found - names.begin());
}

std::int64_t number_of(const std::string& word) {
  const auto number = parse_number<std::int64_t>(word);
  if (!number) refuse(word);
  return *number;
}

}  // namespace

std::string encode(const StoreRequest& request) {
  auto line = fmt::format("{} {} {} {}", kKinds.at(static_cast<std::size_t>(request.kind)), request.number,
                          to_hex(request.expected), to_hex(request.value));
  for (const auto& key : request.keys) line += " " + to_hex(key);
  return line;
}

std::string encode(const StoreReply& reply) {
  auto line = fmt::format("{} {}", kStatuses.at(static_cast<std::size_t>(reply.status)), reply.number);
  for (const auto& value : reply.values) line += " " + to_hex(value);
  return line;
}

StoreRequest decode_store_request(const std::string& line) {
  const auto words = split(line, ' ');
  if (words.size() < 4) refuse(line);
  StoreRequest request{.kind = named<RequestKind>(kKinds, words[0]),
                       .number = number_of(words[1]),
                       .expected = from_hex(words[2]),
                       .value = from_hex(words[3])};
  for (std::size_t i = 4; i < words.size(); ++i) request.keys.push_back(from_hex(words[i]));
  const bool has_any_keys = request.kind == RequestKind::check || request.kind == RequestKind::count ||
                            request.kind == RequestKind::wait || request.kind == RequestKind::get_all;
  if (!has_any_keys && request.keys.size() != 1) refuse(line);
  return request;
}

StoreReply decode_store_reply(const std::string& line) {
  const auto words = split(line, ' ');
  if (words.size() < 2) refuse(line);
  StoreReply reply{.status = named<ReplyStatus>(kStatuses, words[0]), .number = number_of(words[1])};
  for (std::size_t i = 2; i < words.size(); ++i) reply.values.push_back(from_hex(words[i]));
  return reply;
}

RunStoreServer::RunStoreServer(milliseconds silence_limit)
    : silence_limit_(silence_limit),
      listener_(bound_socket(0, {.flags = SOCK_NONBLOCK})),
      token_(random_hex(8)) {
  if (!listener_ || ::listen(listener_.get(), kMostWaiting) != 0)
    throw_error<LaunchError>("the store of the run: no TCP port can be used: {}", errno_text(errno));
  port_ = bound_port(listener_.get());
}

void RunStoreServer::check_descriptors(int ranks) {
  constexpr rlim_t kOthers = 256 + kMostStrangers;  // pipes, connections of the launcher
  const auto needed = static_cast<rlim_t>(ranks) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  throw_error<LaunchError>(
      "the launcher of node 0 serves the store of {} ranks and may need {} file descriptors, but its limit is {}; raise it: "
      "ulimit -n {}",
      ranks, needed, limit.rlim_cur, needed);
}

void RunStoreServer::watch(std::vector<pollfd>& events) const {
  events.push_back({.fd = accept_pause_.expired() ? listener_.get() : -1, .events = POLLIN, .revents = 0});
  for (const auto& [fd, client] : clients_)
    events.push_back({.fd = fd, .events = client.connection.events(), .revents = 0});
}

milliseconds RunStoreServer::poll_timeout() const {
  milliseconds limit{-1};
  const auto wake_at = [&](const Deadline& deadline) {
    const auto left = deadline.remaining() + milliseconds(1);
    limit = limit.count() < 0 ? left : std::min(limit, left);
  };
  if (!accept_pause_.expired()) wake_at(accept_pause_);
  for (const auto& [fd, client] : clients_) {
    if (!client.is_rank) wake_at(client.limit);
    if (client.wait) wake_at(client.wait->deadline);
  }
  return limit;
}

void RunStoreServer::advance(std::span<const pollfd> events) {
  bool has_new = false;
  for (const auto& event : events) {
    if (event.revents == 0) continue;
    if (event.fd == listener_.get()) has_new = true;
    if (const auto found = clients_.find(event.fd); found != clients_.end()) read(found->second);
  }
  end_waits();
  std::erase_if(clients_, [](const auto& entry) {
    const auto& [fd, client] = entry;
    return client.connection.fd() < 0 || !client.connection.broken().empty() ||
           (!client.is_rank && client.limit.expired());
  });
  if (has_new) accept_clients();
}

void RunStoreServer::accept_clients() {
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (!is_exhaustion(errno)) return;
      if (drop_oldest_stranger()) continue;
      accept_pause_ = Deadline(kPauseToAccept);
      return;
    }
    if (strangers() >= kMostStrangers) drop_oldest_stranger();
    const int fd = socket.get();
    auto& client = clients_[fd];
    client.connection = LineConnection(std::move(socket));
    client.connection.set_silence_limit(silence_limit_);
    client.connection.set_max_line(LineConnection::kMaxLineOfStranger);
  }
}

std::size_t RunStoreServer::strangers() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(clients_, [](const auto& entry) { return !entry.second.is_rank; }));
}

bool RunStoreServer::drop_oldest_stranger() {
  auto oldest = clients_.end();
  for (auto at = clients_.begin(); at != clients_.end(); ++at) {
    if (at->second.is_rank) continue;
    if (oldest == clients_.end() || at->second.limit.remaining() < oldest->second.limit.remaining())
      oldest = at;
  }
  if (oldest == clients_.end()) return false;
  clients_.erase(oldest);
  return true;
}

// A rank sends nothing before it has the reply to its last line, so at most one line is kept for each.
void RunStoreServer::read(Client& client) {
  auto& connection = client.connection;
  connection.advance();
  const bool owes_reply = client.wait || connection.queued() > 0;
  const auto line = owes_reply ? std::nullopt : connection.take_line();
  if (connection.received() > 0 && (owes_reply || line)) {
    client = {};
    return;
  }
  if (!line) return;
  try {
    handle_line(client, *line);
  } catch (const LaunchError&) {
    client = {};  // a foreign program is not answered
  }
}

void RunStoreServer::handle_line(Client& client, const std::string& line) {
  auto& connection = client.connection;
  if (!client.is_rank) {
    if (!admit(client, line)) throw LaunchError("a connection to the store of the run has not its token");
    connection.set_max_line(LineConnection::kMaxLine);
    connection.send(encode(StoreReply{}));
    return;
  }
  auto request = decode_store_request(line);
  if (request.kind != RequestKind::wait) return connection.send(encode(answer(request)));
  const milliseconds limit(std::clamp<std::int64_t>(request.number, 0, kLongestWait.count()));
  client.wait = Wait{.request = std::move(request), .deadline = Deadline(limit)};
}

std::string RunStoreServer::token_of(const std::string& token, int node_rank, int epoch) {
  return fmt::format("{}.{}.{}", token, node_rank, epoch);
}

// No request of a stranger is answered, or of a rank that another one has replaced.
bool RunStoreServer::admit(Client& client, const std::string& line) const {
  const auto words = split(line, '.');
  if (words.size() != 3 || !token_.is(words[0])) return false;
  const auto node_rank = parse_number<int>(words[1]);
  const auto epoch = parse_number<int>(words[2]);
  if (!node_rank || !epoch) return false;
  const auto least = epochs_.find(*node_rank);
  if (least != epochs_.end() && *epoch < least->second) return false;
  client.is_rank = true;
  client.node_rank = *node_rank;
  client.epoch = *epoch;
  return true;
}

void RunStoreServer::fence(int node_rank, int epoch) {
  epochs_[node_rank] = epoch;
  std::erase_if(clients_, [&](const auto& entry) {
    const auto& client = entry.second;
    return client.is_rank && client.node_rank == node_rank && client.epoch < epoch;
  });
}

void RunStoreServer::end_waits() {
  for (auto& [fd, client] : clients_) {
    if (!client.wait) continue;
    const bool is_done = has_all(client.wait->request.keys);
    if (!is_done && !client.wait->deadline.expired()) continue;
    client.wait.reset();
    client.connection.send(encode(StoreReply{.status = is_done ? ReplyStatus::done : ReplyStatus::missing}));
  }
}

bool RunStoreServer::has_all(const std::vector<std::string>& keys) const {
  return std::ranges::all_of(keys, [this](const auto& key) { return values_.contains(key); });
}

StoreReply RunStoreServer::answer(const StoreRequest& request) {
  const auto found = request.keys.empty() ? values_.end() : values_.find(request.keys.front());
  const bool exists = found != values_.end();
  switch (request.kind) {
    case RequestKind::set:
      values_[request.keys.front()] = request.value;
      return {};
    case RequestKind::compare_set:  // as c10d's: an absent key equals an empty `expected`
      if (!exists && !request.expected.empty()) return {.values = {request.expected}};
      if (exists && found->second != request.expected) return {.values = {found->second}};
      values_[request.keys.front()] = request.value;
      return {.values = {request.value}};
    case RequestKind::get:
      return exists ? StoreReply{.values = {found->second}} : StoreReply{.status = ReplyStatus::missing};
    case RequestKind::get_all: {
      if (!has_all(request.keys)) return {.status = ReplyStatus::missing};
      StoreReply reply;
      for (const auto& key : request.keys) reply.values.push_back(values_.at(key));
      return reply;
    }
    case RequestKind::add: {
      const auto before = exists ? parse_number<std::int64_t>(found->second) : std::int64_t{0};
      std::int64_t sum = 0;
      if (!before || __builtin_add_overflow(*before, request.number, &sum))
        return {.status = ReplyStatus::no_number};
      values_[request.keys.front()] = std::to_string(sum);
      return {.number = sum};
    }
    case RequestKind::remove:
      return {.number = static_cast<std::int64_t>(values_.erase(request.keys.front()))};
    case RequestKind::check:
      return {.number = has_all(request.keys) ? 1 : 0};
    case RequestKind::count:
      return {.number = static_cast<std::int64_t>(values_.size())};
    case RequestKind::wait:
      break;
  }
  return {.status = ReplyStatus::missing};
}

}  // namespace lockstep::launch
