// SPDX-License-Identifier: BSD-3-Clause
#include "observe/join_hosts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

namespace lockstep::observe {
namespace {

void shift(Progress& progress, std::int64_t by) {
  progress.began_at += by;
  progress.phase_since += by;
  progress.reading_since += by;
  for (auto& step : progress.last) step.ended_at += by;
  for (auto& sample : progress.memory) sample.at += by;
}

void shift(Rank& rank, std::int64_t by) {
  for (auto& member : rank.groups) {
    for (auto& call : member.calls) call.issued_at += by;
  }
  if (rank.progress) shift(*rank.progress, by);
}

// "node3", and "node3 (2)" for another host with this name.
std::string new_name(std::set<std::string>& names, const std::string& host) {
  auto name = host;
  for (int i = 2; !names.insert(name).second; ++i) name = fmt::format("{} ({})", host, i);
  return name;
}

// What ranks publish of a group is on one host.
void rename_groups(Run& run) {
  std::map<std::string, std::set<std::string>> hosts;
  for (const auto& rank : run.ranks) {
    for (const auto& member : rank.groups) hosts[member.group].insert(rank.host);
  }
  for (auto& rank : run.ranks) {
    for (auto& member : rank.groups) {
      if (hosts.at(member.group).size() > 1) member.group += " on " + rank.host;
    }
  }
}

bool is_gone(const Rank& rank) { return rank.life == Life::dead || rank.life == Life::finished; }

void add(Run& whole, Rank rank) {
  const auto same = std::ranges::find(whole.ranks, rank.rank, &Rank::rank);
  if (same == whole.ranks.end()) {
    whole.ranks.push_back(std::move(rank));
  } else if (is_gone(*same) && !is_gone(rank)) {
    *same = std::move(rank);
  }
}

}  // namespace

Run join_hosts(std::vector<Run> runs) {
  Run whole;
  std::set<std::string> names;
  for (auto& run : runs) {
    if (whole.taken_at == 0) {
      whole.id = run.id;
      whole.host = run.host;
      whole.taken_at = run.taken_at;
    }
    const auto name = new_name(names, run.host);
    for (auto& rank : run.ranks) {
      shift(rank, whole.taken_at - run.taken_at);  // the steady clock of a host begins when it starts
      rank.host = name;
      add(whole, std::move(rank));
    }
    whole.hosts.push_back({.name = name, .problem = run.hosts.empty() ? "" : run.hosts.front().problem});
    whole.skew = std::max(whole.skew, run.skew);
  }
  std::ranges::sort(whole.ranks, {}, &Rank::rank);
  rename_groups(whole);
  return whole;
}

}  // namespace lockstep::observe
