// SPDX-License-Identifier: BSD-3-Clause
#include "base/time_limits.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// The launcher looks at the ranks twice, and reads a stack, before it kills one.
constexpr milliseconds kTimeToKill{1'000};

std::string in_seconds(milliseconds span) {
  return fmt::format("{:g} s", static_cast<double>(span.count()) / 1000);
}

}  // namespace

std::string span_text(milliseconds span) {
  if (span < std::chrono::seconds(1)) return fmt::format("{} ms", span.count());
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(span);
  if (minutes.count() >= 2 && minutes == span) return fmt::format("{} min", minutes.count());
  return in_seconds(span);
}

std::string table_text(const std::vector<TimeLimit>& limits) {
  std::size_t wait = 0, limit = 0;
  for (const auto& row : limits) {
    wait = std::max(wait, row.wait.size());
    limit = std::max(limit, row.limit.size());
  }
  std::string text;
  for (const auto& row : limits)
    text += fmt::format("\n  {:<{}}  {:<{}}  {}", row.wait, wait, row.limit, limit, row.set_by);
  return text;
}

std::vector<TimeLimit> rank_limits(milliseconds group_timeout) {
  const auto groups = span_text(group_timeout);
  return {
      {"a collective or message, from the wait for it", groups, "init({.timeout = ...})"},
      {"ranks that find each other", groups, "init({.timeout = ...})"},
      {"the replacement of a lost rank, in elastic::run()", groups, "init({.timeout = ...})"},
      {"groups of new_group() and split_group(), and reconfigure()", groups, "their own timeout"},
      {"the files of the flight recorder, at an error", span_text(kRecorderFilesLimit), "-"},
      {"rank 0, for the others to leave", span_text(kLeaveLimit), "-"},
  };
}

LauncherLimits LauncherLimits::from(const Env& env) {
  LauncherLimits limits;
  const auto text = env.get(kVariable);
  if (!text) return limits;
  for (const auto& entry : split(*text, ',')) {
    const auto equals = entry.find('=');
    const auto name = entry.substr(0, equals);
    const auto number =
        equals == std::string::npos ? std::nullopt : parse_number<std::int64_t>(entry.substr(equals + 1));
    if (!number || *number <= 0)
      throw_error<Error>("{}={} is not what `lockstep run` sets", kVariable, *text);
    if (name == "progress_timeout") limits.progress_timeout = milliseconds(*number);
    if (name == "silence_limit") limits.silence_limit = milliseconds(*number);
    if (name == "shown") limits.are_shown = true;
  }
  return limits;
}

std::string LauncherLimits::text() const {
  std::vector<std::string> entries;
  if (progress_timeout) entries.push_back(fmt::format("progress_timeout={}", progress_timeout->count()));
  if (silence_limit) entries.push_back(fmt::format("silence_limit={}", silence_limit->count()));
  if (are_shown) entries.emplace_back("shown=1");
  return fmt::format("{}", fmt::join(entries, ","));
}

void LauncherLimits::check(milliseconds group_timeout) const {
  if (!progress_timeout || *progress_timeout + kTimeToKill <= group_timeout) return;
  throw_error<ArgumentError>(
      "init: the timeout of the group, {}, has to be at least {} longer than --progress-timeout of `lockstep run`, {}: "
      "the ranks that wait for a frozen one would fail, and be reported or replaced, before it is killed. Raise "
      "InitOptions::timeout, or lower --progress-timeout",
      in_seconds(group_timeout), in_seconds(kTimeToKill), in_seconds(*progress_timeout));
}

std::string LauncherLimits::warning(milliseconds group_timeout) const {
  if (!silence_limit || *silence_limit < group_timeout) return {};
  return fmt::format(
      "the timeout of the group, {}, is not longer than the {} after which `lockstep run` counts a silent host as lost "
      "(--rdzv-conf keep_alive_interval and keep_alive_max_attempt): the ranks that wait for such a host fail first, and "
      "are reported in its place",
      in_seconds(group_timeout), in_seconds(*silence_limit));
}

}  // namespace lockstep
