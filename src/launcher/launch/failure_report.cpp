// SPDX-License-Identifier: BSD-3-Clause
#include "launch/failure_report.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <string.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/text.h"

namespace lockstep::launch {
namespace {

// Messages of Lockstep and NCCL when another rank is gone.
constexpr const char* kRankGone = "because another rank is gone";
constexpr std::array kPeerLostTexts{kRankGone, "rank 0 gave up or died", "ncclRemoteError"};
// Messages of Gloo and c10d's stores, and of other programs about other connections.
constexpr std::array kBrokenConnections{"Connection closed by peer", "Connection reset by peer",
                                        "failed to recv, got 0 bytes", "recvValueWithTimeout failed on"};
constexpr std::array kSources{"gloo", "c10d", "TCPStore"};

bool contains_any(const std::string& line, const auto& texts) {
  return std::ranges::any_of(texts, [&](const char* text) { return line.find(text) != std::string::npos; });
}

std::vector<std::string> rank_details(const FailureReport& report, bool shown) {
  std::vector<std::string> lines;
  const int rank = report.first.rank;
  if (report.stderr_tail.empty()) {
    lines.push_back(fmt::format("rank {} wrote nothing to stderr", rank));
  } else if (!shown) {
    lines.push_back(fmt::format("last lines of rank {}'s stderr:", rank));
    for (const auto& line : report.stderr_tail) lines.push_back("  " + line);
  }
  if (!report.message.empty()) lines.push_back(fmt::format("rank {} recorded: {}", rank, report.message));
  if (!report.log_file.empty())
    lines.push_back(fmt::format("rank {}'s whole stderr: {}", rank, report.log_file));
  return lines;
}

std::string first_failure(const FailureReport& report) {
  const RankExit& first = report.first;
  std::string line = fmt::format("rank {} failed first: it {}; pid {} on host {}", first.rank,
                                 describe(first), first.pid, report.host);
  if (report.restarts > 0) {
    line += fmt::format(", after {} restart{}", report.restarts, report.restarts == 1 ? "" : "s");
  }
  const auto shortage = report.host == host_name() ? address_space_shortage() : std::nullopt;
  if (shortage) line += fmt::format("; {}; raise it: {}", shortage->text, shortage->remedy);
  if (first.signal == SIGKILL && !first.cpu_limit && first.killed_for.empty()) {
    const auto limit = report.host == host_name() ? Cgroups().memory_limit() : std::nullopt;
    line += fmt::format("; the launcher did not send that SIGKILL: check whether memory ran out (dmesg{})",
                        limit ? fmt::format("; the cgroup may use {}", bytes_text(*limit)) : "");
  }
  return line;
}

// The limit that the kernel enforces with a signal.
std::string limit_behind(const RankExit& exit) {
  if (exit.signal == SIGXFSZ) return " (a file grew beyond `ulimit -f`; raise it)";
  if (exit.signal == SIGXCPU) return " (its CPU time reached `ulimit -t`; raise it)";
  if (exit.cpu_limit) return " (its CPU time reached the hard limit of `ulimit -t`; raise it)";
  return "";
}

std::string uneven_data(const std::vector<int>& finished) {
  return fmt::format(
      "before that, rank{} {} finished without an error. Unless {} reported an error, this looks like "
      "uneven data: give every rank the same number of batches, or run the loop inside DistributedDataParallel::join()",
      finished.size() == 1 ? "" : "s", fmt::join(finished, ", "), finished.size() == 1 ? "it" : "they");
}

std::string interrupted_before(const std::vector<int>& ranks) {
  return fmt::format(
      "before that, rank{} {} exited with code {}, which says that a signal has interrupted the run. All ranks have to "
      "agree on that, as by lockstep::StopSignals or the Trainer",
      ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), kExitInterrupted);
}

// The other texts say that a connection broke, which uneven data alone does not cause.
bool may_be_uneven_data(const FailureReport& report) {
  return report.lost_peer && !report.finished.empty() &&
         std::ranges::any_of(report.stderr_tail, [](const std::string& line) {
           return line.find(kRankGone) != std::string::npos;
         });
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

namespace {

std::string how_it_ended(const RankExit& exit) {
  if (exit.left_early) return "exited with code 0 before the end of elastic::run()";
  if (exit.signal == 0) {
    // A process below it was killed, whose end it passes on.
    return fmt::format(
        "exited with code {}{}", exit.code,
        exit.killed_for.empty() ? "" : fmt::format(" after SIGKILL from the launcher ({})", exit.killed_for));
  }
  if (exit.signal == SIGKILL && !exit.killed_for.empty())
    return fmt::format("was killed by SIGKILL from the launcher ({})", exit.killed_for);
  return fmt::format("was killed by {}{}{}", signal_name(exit.signal), limit_behind(exit),
                     exit.core_dumped ? " (core dumped)" : "");
}

}  // namespace

std::string describe(const RankExit& exit) {
  return how_it_ended(exit) + (exit.too_few.empty() ? "" : ", " + exit.too_few);
}

int exit_code(const RankExit& exit) {
  if (exit.left_early) return 1;
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

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

bool reports_lost_peer(const std::deque<std::string>& stderr_tail) {
  return std::ranges::any_of(stderr_tail, [](const std::string& line) {
    return contains_any(line, kPeerLostTexts) ||
           (contains_any(line, kBrokenConnections) && contains_any(line, kSources));
  });
}

std::vector<std::string> report_lines(const FailureReport& report, bool shown) {
  std::vector<std::string> lines;
  if (report.reason.empty()) lines = rank_details(report, shown);
  if (may_be_uneven_data(report)) lines.push_back(uneven_data(report.finished));
  if (!report.interrupted.empty()) lines.push_back(interrupted_before(report.interrupted));
  for (const auto& exit : report.later) {
    lines.push_back(fmt::format("after that, rank {} {}", exit.rank, describe(exit)));
  }
  if (!report.stopped.empty()) {
    lines.push_back(fmt::format("then stopped: rank{} {}", report.stopped.size() == 1 ? "" : "s",
                                fmt::join(report.stopped, ", ")));
  }
  if (report.ends_run) {
    lines.emplace_back(
        "no rank is replaced or started again: all ranks have left elastic::run() with an error that would come again");
  }
  lines.push_back(report.reason.empty() ? first_failure(report) : "the run failed: " + report.reason);
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
                            {"lockstep", report}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void FailureTracker::add(FailureReport report) {
  if (!first_) {
    first_ = std::move(report);
  } else if (may_be_consequence() && !report.lost_peer) {
    later_.push_back(std::exchange(first_, std::move(report))->first);
  } else {
    later_.push_back(report.first);
  }
}

void FailureTracker::add_finished(int rank) {
  if (!first_) finished_.push_back(rank);
}

void FailureTracker::add_interrupted(int rank) {
  if (!first_) interrupted_.push_back(rank);
}

std::optional<FailureReport> FailureTracker::summary(const std::optional<FailureReport>& final_report) const {
  std::optional<FailureReport> failure = final_report ? final_report : first_;
  if (!failure) return std::nullopt;
  failure->later = later_;
  const bool is_here = first_ && failure->reason.empty() && failure->first.rank == first_->first.rank;
  if (first_ && !is_here) failure->later.insert(failure->later.begin(), first_->first);
  failure->stopped = stopped_;
  std::ranges::sort(failure->stopped);
  failure->finished = finished_;
  std::ranges::sort(failure->finished);
  failure->interrupted = interrupted_;
  std::ranges::sort(failure->interrupted);
  return failure;
}

void to_json(nlohmann::json& json, const RankExit& exit) {
  json = {{"rank", exit.rank},
          {"local_rank", exit.local_rank},
          {"pid", exit.pid},
          {"exit_code", nullptr},
          {"signal", exit.signal},
          {"signal_name", nullptr},
          {"core_dumped", exit.core_dumped},
          {"cpu_limit", exit.cpu_limit},
          {"left_early", exit.left_early},
          {"killed_for", exit.killed_for},
          {"too_few", exit.too_few},
          {"interrupted", exit.interrupted}};
  if (exit.signal == 0) {
    json["exit_code"] = exit.code;
  } else {
    json["signal_name"] = signal_name(exit.signal);
  }
}

void from_json(const nlohmann::json& json, RankExit& exit) {
  const auto& code = json.at("exit_code");
  exit = {.rank = json.at("rank"),
          .local_rank = json.at("local_rank"),
          .pid = json.at("pid"),
          .code = code.is_null() ? 0 : code.get<int>(),
          .signal = json.at("signal"),
          .core_dumped = json.at("core_dumped"),
          .cpu_limit = json.value("cpu_limit", false),
          .left_early = json.value("left_early", false),
          .killed_for = json.value("killed_for", ""),
          .too_few = json.value("too_few", ""),
          .interrupted = json.value("interrupted", false)};
}

void to_json(nlohmann::json& json, const FailureReport& report) {
  json = {{"first", nullptr},
          {"reason", report.reason},
          {"host", report.host},
          {"restarts", report.restarts},
          {"time", report.time},
          {"message", report.message},
          {"log_file", report.log_file},
          {"stderr_tail", report.stderr_tail},
          {"ends_run", report.ends_run},
          {"later", report.later},
          {"stopped", report.stopped},
          {"finished", report.finished},
          {"interrupted", report.interrupted}};
  if (report.reason.empty()) json["first"] = report.first;
}

void from_json(const nlohmann::json& json, FailureReport& report) {
  report = {.reason = json.at("reason"),
            .host = json.at("host"),
            .restarts = json.at("restarts"),
            .time = json.at("time"),
            .message = json.at("message"),
            .log_file = json.at("log_file"),
            .stderr_tail = json.at("stderr_tail").get<std::deque<std::string>>(),
            .ends_run = json.value("ends_run", false),
            .later = json.at("later").get<std::vector<RankExit>>(),
            .stopped = json.at("stopped").get<std::vector<int>>(),
            .finished = json.at("finished").get<std::vector<int>>(),
            .interrupted = json.value("interrupted", std::vector<int>())};
  if (!json.at("first").is_null()) json.at("first").get_to(report.first);
}

}  // namespace lockstep::launch
