// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <string.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/launch/failure_report.h>

#include "launch/json.h"

namespace lockstep::launch {
namespace {

// What Lockstep and NCCL say when another rank went away.
constexpr std::array kConsequences{"because another rank is gone", "rank 0 gave up or died",
                                   "ncclRemoteError"};
// What Gloo and c10d's stores say, and others say too: of any connection.
constexpr std::array kBrokenConnections{"Connection closed by peer", "Connection reset by peer",
                                        "failed to recv, got 0 bytes", "recvValueWithTimeout failed on"};
constexpr std::array kSpeakers{"gloo", "c10d", "TCPStore"};

bool holds_one_of(const std::string& line, const auto& texts) {
  return std::ranges::any_of(texts, [&](const char* text) { return line.find(text) != std::string::npos; });
}

std::vector<std::string> account_of_rank(const FailureReport& report) {
  std::vector<std::string> lines;
  const int rank = report.first.rank;
  if (report.stderr_tail.empty()) {
    lines.push_back(fmt::format("rank {} wrote nothing to stderr", rank));
  } else {
    lines.push_back(fmt::format("the last lines that rank {} wrote to stderr:", rank));
    for (const auto& line : report.stderr_tail) lines.push_back("  " + line);
  }
  if (!report.message.empty()) lines.push_back(fmt::format("rank {} recorded: {}", rank, report.message));
  if (!report.log_file.empty())
    lines.push_back(fmt::format("all of rank {}'s stderr: {}", rank, report.log_file));
  return lines;
}

std::string verdict(const FailureReport& report) {
  const RankExit& first = report.first;
  std::string line = fmt::format("rank {} failed first: it {}; pid {} on host {}", first.rank,
                                 describe(first), first.pid, report.host);
  if (report.restarts > 0) {
    line += fmt::format(", after {} restart{}", report.restarts, report.restarts == 1 ? "" : "s");
  }
  if (first.signal == SIGKILL) {
    line += "; the launcher did not send that SIGKILL: if you did not, see whether memory ran out (dmesg)";
  }
  return line;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe(const RankExit& exit) {
  if (exit.signal == 0) return fmt::format("exited with code {}", exit.code);
  return fmt::format("was killed by {}{}", signal_name(exit.signal),
                     exit.core_dumped ? " (core dumped)" : "");
}

int exit_code(const RankExit& exit) { return exit.signal != 0 ? 128 + exit.signal : exit.code; }

void Tail::add(std::string_view line) {
  if (lines_.size() == kLines) lines_.pop_front();
  lines_.emplace_back(line.substr(0, kLineBytes));
  if (line.size() > kLineBytes) lines_.back() += " ...";
}

int exit_code(const FailureReport& report) { return report.reason.empty() ? exit_code(report.first) : 1; }

std::string headline(const FailureReport& report) {
  if (!report.reason.empty()) return report.reason;
  return fmt::format("rank {} {}", report.first.rank, describe(report.first));
}

bool is_consequence(const std::deque<std::string>& stderr_tail) {
  return std::ranges::any_of(stderr_tail, [](const std::string& line) {
    return holds_one_of(line, kConsequences) ||
           (holds_one_of(line, kBrokenConnections) && holds_one_of(line, kSpeakers));
  });
}

std::vector<std::string> report_lines(const FailureReport& report) {
  std::vector<std::string> lines;
  if (report.reason.empty()) lines = account_of_rank(report);
  for (const auto& exit : report.later) {
    lines.push_back(fmt::format("after that, rank {} {}", exit.rank, describe(exit)));
  }
  if (!report.stopped.empty()) {
    lines.push_back(fmt::format("then stopped: rank{} {}", report.stopped.size() == 1 ? "" : "s",
                                fmt::join(report.stopped, ", ")));
  }
  lines.push_back(report.reason.empty() ? verdict(report) : "the run failed: " + report.reason);
  return lines;
}

std::string report_json(const FailureReport& report) {
  std::string what = report.message.empty() ? headline(report) : report.message;
  std::string trace;
  for (const auto& line : report.stderr_tail) trace += line + "\n";
  const auto seconds = std::to_string(static_cast<std::int64_t>(report.time));
  const nlohmann::json json{{"message",
                             {{"message", std::move(what)},
                              {"errorCode", exit_code(report)},
                              {"extraInfo", {{"timestamp", seconds}, {"py_callstack", std::move(trace)}}}}},
                            {"lockstep", to_json(report)}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launch
