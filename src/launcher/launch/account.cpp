// SPDX-License-Identifier: BSD-3-Clause
#include "launch/account.h"

#include <cerrno>
#include <chrono>
#include <string_view>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep::launch {

std::string encode(const AccountEntry& entry) {
  nlohmann::json value{{"time", entry.time},
                       {"restarts", entry.restarts},
                       {"started", nlohmann::json::array()},
                       {"replacement", entry.replacement},
                       {"was_stopped", entry.was_stopped},
                       {"signal", entry.signal}};
  for (const auto& [rank, pid] : entry.started) value["started"].push_back({rank, pid});
  if (entry.exit) value["exit"] = *entry.exit;
  if (entry.failure) value["failure"] = *entry.failure;
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

AccountEntry decode_account_entry(const std::string& line) {
  try {
    const auto value = nlohmann::json::parse(line);
    AccountEntry entry{.time = value.at("time"), .restarts = value.at("restarts")};
    for (const auto& started : value.at("started")) entry.started[started.at(0)] = started.at(1);
    value.at("replacement").get_to(entry.replacement);
    value.at("was_stopped").get_to(entry.was_stopped);
    value.at("signal").get_to(entry.signal);
    if (value.contains("exit")) entry.exit = value["exit"].get<RankExit>();
    if (value.contains("failure")) entry.failure = value["failure"].get<FailureReport>();
    return entry;
  } catch (const nlohmann::json::exception&) {
    throw LaunchError("the account of the ranks' supervisor is malformed");
  }
}

void write_account(int fd, AccountEntry entry) {
  if (fd < 0) return;
  entry.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto line = encode(entry) + '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const auto written = ::write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace lockstep::launch
