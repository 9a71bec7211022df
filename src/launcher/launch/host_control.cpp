// SPDX-License-Identifier: BSD-3-Clause
#include "launch/host_control.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/version.h>

#include "base/host.h"
#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/version.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kLongestOrder = std::size_t{4} * 1024 * 1024;
constexpr std::size_t kLongestLine = 100;

[[noreturn]] void refuse_order(const std::string& reason) {
  throw_error<LaunchError>("lockstep node: {} (`lockstep run --hosts` starts this command)", reason);
}

// Printable, with U+FFFD for what is not UTF-8.
std::string quoted_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void require_utf8(const std::string& text, const std::string& what) {
  try {
    (void)nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw_error<ArgumentError>("--hosts: {} is not UTF-8, so it cannot be sent to the hosts; use UTF-8",
                               what);
  }
}

// All formats of orders have these two fields; before format 2 there was no version.
void check_version(const nlohmann::json& order) {
  const auto version = order.value("lockstep", "");
  if (order.at("order") == formats::kNodeOrders.number && version == lockstep::version()) return;
  throw_error<LaunchError>(
      "host {} has Lockstep {}, but the host on which `lockstep run --hosts` was started has {}; install the "
      "same version on all hosts",
      host_name(), lockstep::version(), version.empty() ? "an earlier one" : version);
}

}  // namespace

std::string encode(const NodeOrder& order) {
  for (const auto& word : order.arguments) require_utf8(word, "the argument " + quoted_text(word));
  require_utf8(order.folder, "the working directory " + quoted_text(order.folder));
  // A value may be a secret.
  for (const auto& [name, value] : order.environment) {
    require_utf8(name + value, fmt::format("the variable {}", quoted_text(name)));
  }
  return nlohmann::json{{"order", formats::kNodeOrders.number},
                        {"lockstep", lockstep::version()},
                        {"arguments", order.arguments},
                        {"environment", order.environment},
                        {"folder", order.folder}}
      .dump();
}

NodeOrder decode_node_order(const std::string& line) {
  try {
    const auto json = nlohmann::json::parse(line);
    check_version(json);
    return {.arguments = json.at("arguments"),
            .environment = json.at("environment"),
            .folder = json.at("folder").get<std::string>()};
  } catch (const nlohmann::json::exception&) {
    refuse_order("the first line of stdin is malformed");
  }
}

NodeOrder read_node_order(int fd, const Deadline& deadline) {
  std::string line;
  for (char byte = 0; line.size() < kLongestOrder; line += byte) {
    if (!wait_for(fd, POLLIN, deadline)) refuse_order("stdin has no complete line");
    const auto count = ::read(fd, &byte, 1);
    if (count == 0) refuse_order("stdin has no line");
    if (count < 0) refuse_order("stdin cannot be read");
    if (byte == '\n') return decode_node_order(line);
  }
  refuse_order("the first line of stdin is too long");
}

void HostControl::watch(std::vector<pollfd>& events) const {
  if (lost_.empty()) events.push_back({.fd = fd_, .events = POLLIN, .revents = 0});
}

std::chrono::milliseconds HostControl::poll_timeout() const {
  return lost_.empty() ? silence_.remaining() + std::chrono::milliseconds(1) : std::chrono::milliseconds(-1);
}

std::optional<int> HostControl::next_signal() {
  if (lost_.empty() && wait_for(fd_, POLLIN, Deadline(std::chrono::milliseconds(0)))) read_some();
  for (auto end = in_.find('\n'); end != std::string::npos; end = in_.find('\n')) {
    const auto signal = parse_number<int>(std::string_view(in_).substr(0, end));
    in_.erase(0, end + 1);
    if (signal) return signal;
  }
  if (lost_.empty() && silence_.expired()) lost_ = "lockstep run --hosts is silent";
  if (lost_.empty() || loss_told_) return std::nullopt;
  loss_told_ = true;
  return SIGHUP;
}

void HostControl::read_some() {
  std::array<char, 4096> buffer;
  const auto count = ::read(fd_, buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count > 0) {
    in_.append(buffer.data(), static_cast<std::size_t>(count));
    silence_ = Deadline(silence_limit_);
  }
  if (count <= 0 || in_.size() > buffer.size() + kLongestLine) {
    lost_ = "the connection to lockstep run --hosts closed";
  }
}

}  // namespace lockstep::launch
