// SPDX-License-Identifier: BSD-3-Clause
#include "observe/host_snapshot.h"

#include <algorithm>
#include <iterator>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/throw_error.h"
#include "observe/find_runs.h"

namespace lockstep::observe {
namespace {

// The rank's pid as this process sees it; 0: it has ended.
int visible_pid(const ObservedRun& observed, const Rank& rank) {
  for (const auto& each : observed.publications) {
    if (each.status->pid == rank.pid && each.pid != 0) return each.pid;
  }
  for (const auto& each : observed.progress) {
    if (each.memory->pid == rank.pid && each.pid != 0) return each.pid;
  }
  return 0;
}

void keep_last_calls(Rank& rank, std::size_t count) {
  for (auto& member : rank.groups) {
    if (member.calls.size() <= count) continue;
    member.calls.erase(member.calls.begin(), member.calls.end() - static_cast<std::ptrdiff_t>(count));
  }
}

std::string text_of(const Run& run, const Rank& rank, std::int64_t resident) {
  const Run part{.id = run.id, .host = run.host, .taken_at = run.taken_at, .ranks = {rank}};
  const nlohmann::json value{{"run", to_json(part)}, {"resident", resident}};
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string part_of(const Run& run, const Rank& rank, std::int64_t resident) {
  auto text = text_of(run, rank, resident);
  auto shorter = rank;
  for (const std::size_t calls : {16U, 4U, 1U}) {
    if (text.size() <= kMostPart) return text;
    keep_last_calls(shorter, calls);
    text = text_of(run, shorter, resident);
  }
  if (text.size() <= kMostPart) return text;
  shorter.groups.clear();
  return text_of(run, shorter, resident);
}

std::vector<std::string> snapshot_parts(int first_rank, int count) {
  const auto observed = joined(find_runs(processes_below(::getpid())));
  if (!observed.problem.empty()) throw Error(observed.problem);
  const auto run = observed.read();
  std::vector<std::string> parts;
  for (const auto& rank : run.ranks) {
    // Launchers that share a machine see what the ranks of the others publish, too.
    if (count > 0 && (rank.rank < first_rank || rank.rank >= first_rank + count)) continue;
    const int pid = visible_pid(observed, rank);
    parts.push_back(part_of(run, rank, pid == 0 ? 0 : resident_bytes_of(pid)));
  }
  return parts;
}

HostSnapshot snapshot_from(const std::vector<std::string>& parts) {
  HostSnapshot snapshot;
  for (const auto& text : parts) {
    const auto value = nlohmann::json::parse(text, nullptr, false);
    if (!value.is_object() || !value.contains("run") || !value.contains("resident") ||
        !value["resident"].is_number_integer()) {
      throw Error(
          "a launcher has sent a text that is not a snapshot of a rank; install the same version on all hosts");
    }
    auto run = run_from_json(value["run"]);
    const auto resident = value["resident"].get<std::int64_t>();
    for (const auto& rank : run.ranks) {
      if (resident > 0) snapshot.resident[rank.rank] = resident;
    }
    auto ranks = std::move(snapshot.run.ranks);
    std::ranges::move(run.ranks, std::back_inserter(ranks));
    snapshot.run = std::move(run);
    snapshot.run.ranks = std::move(ranks);
  }
  return snapshot;
}

}  // namespace lockstep::observe
