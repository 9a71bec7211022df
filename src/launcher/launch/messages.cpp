// SPDX-License-Identifier: BSD-3-Clause
#include "launch/messages.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <concepts>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "base/throw_error.h"

template <typename Value>
struct nlohmann::adl_serializer<std::optional<Value>> {
  static void to_json(json& to, const std::optional<Value>& value) { to = value ? json(*value) : json(); }
  static void from_json(const json& from, std::optional<Value>& value) {
    if (!from.is_null()) value = from.get<Value>();
  }
};

namespace lockstep::launch {
namespace {

using Json = nlohmann::json;

// The kinds of messages, in the order of the variants.
constexpr std::array kFromNode{"reserved", "failed", "stopped", "finished", "leaving", "seen", "replaced"};
constexpr std::array kToNode{"challenge", "welcome", "reserve", "start", "stop",     "notice", "end",
                             "refused",   "alive",   "look",    "seen",  "restarts", "lost",   "adopt"};

template <typename Type, typename Message>
concept Is = std::same_as<std::remove_const_t<Type>, Message>;

template <typename Value>
struct Field {
  const char* name;
  Value& value;
};
template <typename Value>
Field(const char* name, Value& value) -> Field<Value>;

// visit_fields() passes the fields of a message to `visit`, to write and to read them.

template <typename Message>
  requires std::is_empty_v<Message>
void visit_fields(Message& /*message*/, const auto& /*visit*/) {}

template <typename Message>
  requires Is<Message, Stopped> || Is<Message, Finished>
void visit_fields(Message& message, const auto& visit) {
  visit(Field{"attempt", message.attempt});
}

void visit_fields(Is<Refused> auto& message, const auto& visit) { visit(Field{"reason", message.reason}); }

void visit_fields(Is<Notice> auto& message, const auto& visit) { visit(Field{"text", message.text}); }

void visit_fields(Is<Leaving> auto& message, const auto& visit) {
  visit(Field{"reason", message.reason}, Field{"signal", message.signal});
}

void visit_fields(Is<Challenge> auto& message, const auto& visit) {
  visit(Field{"challenge", message.challenge});
}

void visit_fields(Is<Welcome> auto& message, const auto& visit) {
  visit(Field{"proof", message.proof}, Field{"silence_limit_ms", message.silence_limit_ms});
}

void visit_fields(Is<Reserved> auto& message, const auto& visit) {
  visit(Field{"address", message.address}, Field{"port", message.port},
        Field{"store_port", message.store_port}, Field{"store_token", message.store_token});
}

void visit_fields(Is<Failed> auto& message, const auto& visit) {
  visit(Field{"attempt", message.attempt}, Field{"consequence", message.consequence},
        Field{"report", message.report});
}

void visit_fields(Is<Replaced> auto& message, const auto& visit) {
  visit(Field{"attempt", message.attempt}, Field{"report", message.report});
}

void visit_fields(Is<Restarts> auto& message, const auto& visit) {
  visit(Field{"attempt", message.attempt}, Field{"restarts", message.restarts}, Field{"rank", message.rank});
}

void visit_fields(Is<Lost> auto& message, const auto& visit) {
  visit(Field{"attempt", message.attempt}, Field{"node_rank", message.node_rank},
        Field{"epoch", message.epoch}, Field{"notice", message.notice}, Field{"report", message.report});
}

void visit_fields(Is<Adopt> auto& message, const auto& visit) {
  auto& node = message.node;
  visit(Field{"node_rank", node.node_rank}, Field{"role", node.role}, Field{"memory", node.memory},
        Field{"threads", node.threads});
}

void visit_fields(Is<Stop> auto& message, const auto& visit) {
  visit(Field{"attempt", message.attempt}, Field{"notice", message.notice}, Field{"signal", message.signal});
}

void visit_fields(Is<End> auto& message, const auto& visit) {
  visit(Field{"failure", message.failure}, Field{"signal", message.signal});
}

void visit_fields(Is<Start> auto& message, const auto& visit) {
  auto& start = message.assignment;
  visit(Field{"attempt", start.attempt}, Field{"restarts", start.restarts},
        Field{"node_rank", start.node_rank}, Field{"nodes", start.nodes},
        Field{"first_rank", start.first_rank}, Field{"world_size", start.world_size},
        Field{"first_role_rank", start.first_role_rank}, Field{"role_world_size", start.role_world_size},
        Field{"master_addr", start.master_addr}, Field{"master_port", start.master_port},
        Field{"store_port", start.store_port}, Field{"store_token", start.store_token},
        Field{"epoch", start.epoch});
}

void visit_fields(Is<Look> auto& message, const auto& visit) {
  visit(Field{"id", message.id}, Field{"host", message.host}, Field{"first_rank", message.first_rank},
        Field{"ranks", message.ranks});
}

void visit_fields(Is<Seen> auto& message, const auto& visit) {
  visit(Field{"host", message.host}, Field{"name", message.name}, Field{"problem", message.problem},
        Field{"parts", message.parts}, Field{"text", message.text}, Field{"after_ms", message.after_ms});
}

void visit_fields(Is<Hello> auto& message, const auto& visit) {
  auto& node = message.node;
  auto& shared = node.shared;
  visit(Field{"protocol", shared.messages}, Field{"lockstep", shared.lockstep},
        Field{"run_id", shared.run_id}, Field{"min_nodes", shared.min_nodes},
        Field{"max_nodes", shared.max_nodes}, Field{"max_restarts", shared.max_restarts},
        Field{"on_loss", shared.on_loss}, Field{"node_rank", node.node_rank}, Field{"ranks", node.ranks},
        Field{"role", node.role}, Field{"host", node.host}, Field{"is_host", node.is_host},
        Field{"grace_period_ms", node.grace_period_ms}, Field{"memory", node.memory},
        Field{"threads", node.threads}, Field{"is_adopter", node.is_adopter},
        Field{"challenge", message.challenge}, Field{"proof", message.proof},
        Field{"purpose", message.purpose}, Field{"look", message.look}, Field{"asked", message.asked});
}

std::string line_of(const auto& message, Json json) {
  visit_fields(message, [&](const auto&... field) { ((json[field.name] = field.value), ...); });
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Message>
Message read(const Json& json) {
  Message message;
  visit_fields(message, [&](const auto&... field) { (json.at(field.name).get_to(field.value), ...); });
  return message;
}

[[noreturn]] void refuse_kind(const std::string& kind) {
  throw_error<LaunchError>("unknown kind of message: \"{}\"", kind);
}

template <typename Variant, std::size_t index = 0>
Variant read_one_of(const Json& json, const std::array<const char*, std::variant_size_v<Variant>>& kinds) {
  if constexpr (index < std::variant_size_v<Variant>) {
    if (json.at("kind") != kinds[index]) return read_one_of<Variant, index + 1>(json, kinds);
    return read<std::variant_alternative_t<index, Variant>>(json);
  } else {
    refuse_kind(json.at("kind"));
  }
}

// Another program may send anything to this port.
template <typename Read>
auto decode(const std::string& line, const Read& read) {
  try {
    return read(Json::parse(line));
  } catch (const Json::exception& error) {
    throw_error<LaunchError>("this is not a message of a launcher: \"{}\" ({})", line.substr(0, 80),
                             error.what());
  }
}

std::string encode_one_of(const auto& message, const auto& kinds) {
  const Json kind{{"kind", kinds[message.index()]}};
  return std::visit([&](const auto& content) { return line_of(content, kind); }, message);
}

}  // namespace

std::string encode(const Hello& hello) { return line_of(hello, {{"kind", "hello"}}); }

namespace {

Hello read_hello_of_another_format(const Json& json) {
  Hello hello{.challenge = json.at("challenge"), .proof = json.at("proof")};
  hello.node.host = json.at("host");
  hello.node.shared.messages = json.at("protocol");
  hello.node.shared.lockstep = json.value("lockstep", "");
  return hello;
}

}  // namespace

Hello decode_hello(const std::string& line) {
  return decode(line, [](const Json& json) {
    if (json.at("kind") != "hello") refuse_kind(json.at("kind"));
    if (json.at("protocol") != formats::kLauncherMessages.number) return read_hello_of_another_format(json);
    auto hello = read<Hello>(json);
    constexpr int most = 1'000'000;
    constexpr std::int64_t longest = std::int64_t{25} * 3600 * 1000;  // more than any grace period
    const auto& node = hello.node;
    if (node.ranks < 1 || node.ranks > most || node.node_rank.value_or(0) < 0 || node.grace_period_ms < 0 ||
        node.grace_period_ms > longest || hello.purpose < Purpose::join || hello.purpose > Purpose::answer) {
      throw LaunchError("a launcher's first message has numbers that are out of range");
    }
    return hello;
  });
}

std::string encode(const FromNode& message) { return encode_one_of(message, kFromNode); }
FromNode decode_from_node(const std::string& line) {
  return decode(line, [](const Json& json) { return read_one_of<FromNode>(json, kFromNode); });
}

std::string encode(const ToNode& message) { return encode_one_of(message, kToNode); }
ToNode decode_to_node(const std::string& line) {
  return decode(line, [](const Json& json) { return read_one_of<ToNode>(json, kToNode); });
}

namespace {

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

bool must_wait(int code) { return code == EAGAIN || code == EWOULDBLOCK || code == EINTR; }

}  // namespace

bool is_exhaustion(int code) { return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM; }

void LineConnection::set_silence_limit(std::chrono::milliseconds limit) const {
  constexpr int kProbes = 3;
  const int seconds = std::max(1, static_cast<int>(limit.count()) / 1000 / kProbes);
  set_option(fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPCNT, kProbes - 1);
  set_option(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
  set_option(fd(), IPPROTO_TCP, TCP_NODELAY, 1);
}

void LineConnection::send(const std::string& line) {
  out_ += line + "\n";
  if (socket_ && broken_.empty()) write_some();
}

void LineConnection::advance() {
  if (broken_.empty()) write_some();
  if (broken_.empty()) read_some();
}

std::optional<std::string> LineConnection::take_line() {
  const auto end = in_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = in_.substr(0, end);
  in_.erase(0, end + 1);
  return line;
}

void LineConnection::read_some() {
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t count = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      in_.append(buffer.data(), static_cast<std::size_t>(count));
      if (in_.size() > max_line_) broken_ = "it sent a line that is too long for a launcher";
      // The owner takes a line before it reads on, so that several long ones are no line that is too long.
      const bool has_line = std::memchr(buffer.data(), '\n', static_cast<std::size_t>(count)) != nullptr;
      if (!broken_.empty() || has_line) return;
      continue;
    }
    if (count == 0) {
      broken_ = "its connection closed";
    } else if (!must_wait(errno)) {
      broken_ = errno_text(errno);
    }
    return;
  }
}

void LineConnection::write_some() {
  while (!out_.empty()) {
    const ssize_t count = ::send(fd(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
      if (!must_wait(errno)) broken_ = errno_text(errno);
      return;
    }
    out_.erase(0, static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::launch
