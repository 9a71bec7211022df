// SPDX-License-Identifier: BSD-3-Clause
#include "launch/json.h"

namespace lockstep::launch {
namespace {

nlohmann::json exit_to_json(const RankExit& exit) {
  nlohmann::json json{{"rank", exit.rank}, {"local_rank", exit.local_rank}, {"pid", exit.pid}};
  json["exit_code"] = exit.signal == 0 ? nlohmann::json(exit.code) : nlohmann::json(nullptr);
  json["signal"] = exit.signal;
  json["signal_name"] = exit.signal == 0 ? nlohmann::json(nullptr) : nlohmann::json(signal_name(exit.signal));
  json["core_dumped"] = exit.core_dumped;
  return json;
}

RankExit exit_from(const nlohmann::json& json) {
  const auto& code = json.at("exit_code");
  return {.rank = json.at("rank"),
          .local_rank = json.at("local_rank"),
          .pid = json.at("pid"),
          .code = code.is_null() ? 0 : code.get<int>(),
          .signal = json.at("signal"),
          .core_dumped = json.at("core_dumped")};
}

}  // namespace

nlohmann::json to_json(const FailureReport& report) {
  nlohmann::json json{{"first", report.reason.empty() ? exit_to_json(report.first) : nlohmann::json(nullptr)},
                      {"reason", report.reason},
                      {"host", report.host},
                      {"restarts", report.restarts},
                      {"time", report.time},
                      {"message", report.message},
                      {"log_file", report.log_file},
                      {"stderr_tail", report.stderr_tail},
                      {"later", nlohmann::json::array()},
                      {"stopped", report.stopped}};
  for (const auto& exit : report.later) json["later"].push_back(exit_to_json(exit));
  return json;
}

FailureReport failure_report_from(const nlohmann::json& json) {
  FailureReport report{.reason = json.at("reason"),
                       .host = json.at("host"),
                       .restarts = json.at("restarts"),
                       .time = json.at("time"),
                       .message = json.at("message"),
                       .log_file = json.at("log_file"),
                       .stderr_tail = json.at("stderr_tail").get<std::deque<std::string>>(),
                       .stopped = json.at("stopped").get<std::vector<int>>()};
  if (!json.at("first").is_null()) report.first = exit_from(json.at("first"));
  for (const auto& exit : json.at("later")) report.later.push_back(exit_from(exit));
  return report;
}

}  // namespace lockstep::launch
