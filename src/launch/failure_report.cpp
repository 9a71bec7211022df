// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <csignal>
#include <map>
#include <string.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/launch/failure_report.h>

namespace lockstep::launch {
namespace {

// "after that: ranks 0, 2 were killed by SIGTERM; rank 3 exited with code 1", one entry a way to end.
std::string summary(const std::vector<RankExit>& exits) {
  std::map<std::string, std::vector<int>> ranks;
  for (const auto& exit : exits)
    ranks[exit.signal != 0 ? signal_name(exit.signal) : fmt::format("exit code {}", exit.code)].push_back(
        exit.rank);
  std::vector<std::string> parts;
  for (auto& [how, which] : ranks) {
    std::ranges::sort(which);
    parts.push_back(
        fmt::format("{} {} ({})", which.size() == 1 ? "rank" : "ranks", fmt::join(which, ", "), how));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
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

std::vector<std::string> report_lines(const FailureReport& report) {
  std::vector<std::string> lines;
  const RankExit& first = report.first;
  if (report.stderr_tail.empty()) {
    lines.push_back(fmt::format("rank {} wrote nothing to stderr", first.rank));
  } else {
    lines.push_back(fmt::format("the last lines that rank {} wrote to stderr:", first.rank));
    for (const auto& line : report.stderr_tail) lines.push_back("  " + line);
  }
  if (!report.later.empty()) lines.push_back("ended after that: " + summary(report.later));
  lines.push_back(fmt::format("rank {} failed first: it {}; pid {} on host {}", first.rank, describe(first),
                              first.pid, report.host));
  if (first.signal == SIGKILL) {
    lines.back() +=
        "; the launcher did not send that SIGKILL: if you did not, see whether memory ran out (dmesg)";
  }
  return lines;
}

}  // namespace lockstep::launch
