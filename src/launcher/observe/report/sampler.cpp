// SPDX-License-Identifier: BSD-3-Clause
#include "observe/report/sampler.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/rank_progress.h"
#include "observe/processes.h"
#include "observe/report/redaction.h"
#include "observe/stack_report.h"

namespace lockstep::observe {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstPeriod = 50ms;  // while ranks begin
constexpr auto kBeginning = 5s;      // so long
constexpr auto kLongestBeginning =
    60s;                            // a program that publishes nothing is looked for less often from then on
constexpr auto kSearchPeriod = 5s;  // groups may be formed later
constexpr std::size_t kMostStacks = 4;  // processes whose stacks are read for a fault
constexpr auto kStacksLimit = 10s;      // no further process is read for it then

std::int64_t processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void Sampler::expect(std::size_t ranks) {
  expected_ = ranks;
  started_at_ = Clock::now();
  search_due_ = true;
}

void Sampler::rank_started() {
  ++expected_;
  started_at_ = Clock::now();
  search_due_ = true;
}

void Sampler::rank_ended() {
  if (expected_ > 0) --expected_;
  search_due_ = true;
}

std::chrono::milliseconds Sampler::wait() const {
  return misses_ranks() && Clock::now() - started_at_ < kBeginning ? kFirstPeriod : kPeriod;
}

void Sampler::look(bool judged) {
  const auto begin = processor_time();
  ++looks_;
  const auto now = Clock::now();
  const bool may_come = misses_ranks() && now - started_at_ < kLongestBeginning;
  const bool is_due = search_due_ || may_come || now - searched_at_ >= kSearchPeriod;
  // Ranks that have ended are read a last time before they are forgotten.
  if (!ranks_.progress.empty()) add(judged);
  if (is_due) {
    const auto before = ranks_.pids;
    search();
    if (ranks_.pids != before && !ranks_.pids.empty()) add(judged);
  }
  processor_time_ += processor_time() - begin;
}

void Sampler::add(bool judged) {
  auto run = ranks_.read(/*with_activity=*/false);
  Verdict verdict;
  if (judged) verdict = judge(run);
  if (verdict.cause != Cause::none) {
    run = ranks_.read();
    verdict = judge(run);
  }
  history_.add(run, verdict);
  if (history_.lacks_stacks(run)) {
    auto text = stacks_of_named(run, verdict);
    history_.add_stacks(std::move(text), steady_now());
  }
}

// At most kMostStacks processes: a deadlock may name all ranks.
std::string Sampler::stacks_of_named(const Run& run, const Verdict& verdict) const {
  const Deadline deadline(kStacksLimit);
  std::string text;
  std::set<std::int64_t> processes;
  for (const auto& rank : run.ranks) {
    const bool is_named = std::ranges::find(verdict.ranks, rank.rank) != verdict.ranks.end();
    if (!is_named || processes.size() == kMostStacks || !processes.insert(rank.pid).second) continue;
    if (deadline.expired()) {
      text += fmt::format("{}: its stack was not read: those of others took {} s\n", rank.describe(),
                          kStacksLimit.count());
      continue;
    }
    try {
      text += short_stacks_text(ranks_, rank.pid, deadline);
    } catch (const std::exception& error) {
      text += fmt::format("{}: its stack cannot be shown: {}\n", rank.describe(), error.what());
    }
  }
  log(LogLevel::debug, "--report: the stacks of stuck ranks were read");
  return redacted(text);
}

void Sampler::search() {
  ranks_ = joined(find_runs(processes_below(launcher_)));
  searched_at_ = Clock::now();
  search_due_ = false;
  if (libtorch_.empty() && !ranks_.pids.empty()) libtorch_ = libtorch_version_of(ranks_.pids.front());
}

std::string libtorch_version_of(int pid) {
  namespace fs = std::filesystem;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    const auto path = line.find('/');
    if (path == std::string::npos || !line.ends_with("/libtorch_cpu.so")) continue;
    const auto folder = fs::path(line.substr(path)).parent_path().parent_path();
    if (auto version = first_line(folder / "build-version"); !version.empty())
      return version;                             // of the archive
    std::ifstream module(folder / "version.py");  // of the Python package
    const std::string key = "__version__ = '";
    for (std::string text; std::getline(module, text);) {
      if (text.starts_with(key)) return text.substr(key.size(), text.rfind('\'') - key.size());
    }
    return {};
  }
  return {};
}

}  // namespace lockstep::observe
