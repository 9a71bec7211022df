// SPDX-License-Identifier: BSD-3-Clause
#include "observe/figures.h"

#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

#include "observe/call_names.h"

namespace lockstep::observe {
namespace {

constexpr double kNanoseconds = 1e-9;

double seconds_of(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * kNanoseconds; }

// 0 if the shape or the element type is not known.
std::uint64_t tensor_bytes_of(const Call& call) {
  if (call.dims != static_cast<int>(call.shape.size())) return 0;
  const auto elements =
      std::accumulate(call.shape.begin(), call.shape.end(), std::int64_t{1}, std::multiplies<>());
  return static_cast<std::uint64_t>(elements) * bytes_of_dtype(call.dtype);
}

// The part of the times in each phase.
std::array<double, kPhases> shares_of(const PhaseTimes& times) {
  std::array<double, kPhases> shares{};
  const auto whole = std::accumulate(times.begin(), times.end(), std::int64_t{0});
  for (std::size_t i = 0; whole > 0 && i < kPhases; ++i)
    shares[i] = static_cast<double>(times[i]) / static_cast<double>(whole);
  return shares;
}

void add_steps(const Progress& progress, std::int64_t now, RankFigures& figures) {
  const auto& first = progress.last.front();
  const auto& last = progress.last.back();
  const auto steps = static_cast<double>(last.number - first.number);
  auto time = last.ended_at - first.ended_at;
  if (static_cast<double>(now - last.ended_at) * steps > 2 * static_cast<double>(time))
    time = now - first.ended_at;
  if (time <= 0) return;
  figures.steps_per_second = steps / seconds_of(time);
  figures.samples_per_second = static_cast<double>(last.samples - first.samples) / seconds_of(time);
}

void add_rank_progress(const Progress& progress, std::int64_t now, RankFigures& figures) {
  figures.phase_age = std::max<std::int64_t>(0, now - progress.phase_since);
  auto times = progress.spent;
  times.at(static_cast<std::size_t>(progress.phase)) += figures.phase_age;
  if (progress.last.size() >= 2) {
    add_steps(progress, now, figures);
    for (std::size_t i = 0; i < kPhases; ++i)
      times[i] = progress.last.back().spent[i] - progress.last.front().spent[i];
  }
  figures.shares = shares_of(times);
}

std::optional<CallUnderWay> call_under_way(const Rank& rank, std::int64_t now) {
  const Membership* in = nullptr;
  const Call* last = nullptr;
  for (const auto& member : rank.groups) {
    const auto* const call = member.unfinished();
    if (call == nullptr || (last != nullptr && last->issued_at > call->issued_at)) continue;
    in = &member;
    last = call;
  }
  if (last == nullptr) return std::nullopt;
  return CallUnderWay{.group = in->group,
                      .backend = in->backend,
                      .call = *last,
                      .age = std::max<std::int64_t>(0, now - last->issued_at),
                      .bytes = tensor_bytes_of(*last)};
}

const Rank* same_rank(const Run& run, const Rank& rank) {
  const auto found = std::ranges::find_if(run.ranks, [&](const Rank& each) {
    return each.pid == rank.pid && each.thread == rank.thread && each.host == rank.host;
  });
  return found == run.ranks.end() ? nullptr : &*found;
}

// [backend]: bytes a second.
std::map<std::string, double> traffic_of(const Rank& rank, const Rank& earlier, std::int64_t time) {
  std::map<std::string, double> rates;
  for (const auto& member : rank.groups) {
    const auto before = std::ranges::find(earlier.groups, member.group, &Membership::group);
    auto& rate = rates[member.backend];
    if (before == earlier.groups.end() || before->bytes > member.bytes) continue;
    rate += static_cast<double>(member.bytes - before->bytes) / seconds_of(time);
  }
  return rates;
}

std::vector<Traffic> list_of(const std::map<std::string, double>& rates) {
  std::vector<Traffic> traffic;
  for (const auto& [backend, rate] : rates) traffic.push_back({backend, rate});
  return traffic;
}

// The ranks that enter a collective, as far as they are known.
struct SharedCall {
  std::size_t ranks = 0;
  const Rank* last_rank = nullptr;
  const Call* first = nullptr;
  const Call* last = nullptr;

  void add(const Rank& rank, const Call& call) {
    ++ranks;
    if (first == nullptr || call.issued_at < first->issued_at) first = &call;
    if (last != nullptr && call.issued_at <= last->issued_at) return;
    last = &call;
    last_rank = &rank;
  }
};

// What the ranks of a group on this host have called.
struct GroupCalls {
  std::size_t members = 0;
  std::map<std::uint64_t, SharedCall> collectives{};  // by sequence
};

std::vector<LastArrival> last_arrivals_of(const Run& run) {
  std::map<std::string, GroupCalls> groups;
  for (const auto& rank : run.ranks) {
    for (const auto& member : rank.groups) {
      auto& group = groups[member.group];
      ++group.members;
      for (const auto& call : member.calls) {
        if (!call.is_message()) group.collectives[call.sequence].add(rank, call);
      }
    }
  }
  std::vector<LastArrival> found;
  for (const auto& [name, group] : groups) {
    if (group.members < 2) continue;
    const auto common = std::find_if(group.collectives.rbegin(), group.collectives.rend(),
                                     [&](const auto& entry) { return entry.second.ranks == group.members; });
    if (common == group.collectives.rend()) continue;
    const auto& all = common->second;
    found.push_back({.group = name,
                     .call = *all.last,
                     .rank = all.last_rank->rank,
                     .behind = all.last->issued_at - all.first->issued_at});
  }
  return found;
}

void add_up(const RankFigures& rank, Figures& figures, std::map<std::string, double>& rates) {
  figures.samples_per_second += rank.samples_per_second;
  const bool is_slowest = figures.steps_per_second == 0 || rank.steps_per_second < figures.steps_per_second;
  if (rank.steps_per_second > 0 && is_slowest) figures.steps_per_second = rank.steps_per_second;
  for (const auto& each : rank.traffic) rates[each.backend] += each.bytes_per_second;
}

nlohmann::json list_to_json(const std::vector<Traffic>& traffic) {
  auto list = nlohmann::json::object();
  for (const auto& each : traffic) list[each.backend] = each.bytes_per_second;
  return list;
}

nlohmann::json to_json(const RankFigures& rank) {
  nlohmann::json call;
  if (rank.call) {
    call = {{"group", rank.call->group},    {"backend", rank.call->backend},
            {"name", rank.call->call.name}, {"sequence", rank.call->call.sequence},
            {"file", rank.call->call.file}, {"line", rank.call->call.line},
            {"age_ns", rank.call->age},     {"bytes", rank.call->bytes}};
  }
  auto shares = nlohmann::json::object();
  for (std::size_t i = 0; i < kPhases; ++i) shares[std::string(kPhaseNames.at(i))] = rank.shares[i];
  return {{"steps_per_second", rank.steps_per_second},
          {"samples_per_second", rank.samples_per_second},
          {"shares", std::move(shares)},
          {"phase_age_ns", rank.phase_age},
          {"call", std::move(call)},
          {"bytes_per_second", list_to_json(rank.traffic)},
          {"resident", rank.memory.resident},
          {"pss", rank.memory.proportional}};
}

}  // namespace

Figures figures_of(const Run& run, const Run* earlier, const std::map<std::int64_t, MemoryUse>& memory) {
  Figures figures;
  std::map<std::string, double> rates;
  for (const auto& rank : run.ranks) {
    RankFigures own{.call = call_under_way(rank, run.taken_at)};
    if (rank.progress) add_rank_progress(*rank.progress, run.taken_at, own);
    const auto* const before = earlier == nullptr ? nullptr : same_rank(*earlier, rank);
    if (before != nullptr && run.taken_at > earlier->taken_at)
      own.traffic = list_of(traffic_of(rank, *before, run.taken_at - earlier->taken_at));
    if (const auto use = memory.find(rank.pid); use != memory.end()) own.memory = use->second;
    add_up(own, figures, rates);
    figures.ranks.push_back(std::move(own));
  }
  figures.arrivals = last_arrivals_of(run);
  figures.traffic = list_of(rates);
  return figures;
}

nlohmann::json to_json(const Figures& figures) {
  auto ranks = nlohmann::json::array();
  for (const auto& rank : figures.ranks) ranks.push_back(to_json(rank));
  auto arrivals = nlohmann::json::array();
  for (const auto& last : figures.arrivals)
    arrivals.push_back({{"group", last.group},
                        {"rank", last.rank},
                        {"behind_ns", last.behind},
                        {"name", last.call.name},
                        {"sequence", last.call.sequence}});
  return {{"steps_per_second", figures.steps_per_second},
          {"samples_per_second", figures.samples_per_second},
          {"bytes_per_second", list_to_json(figures.traffic)},
          {"last_arrivals", std::move(arrivals)},
          {"ranks", std::move(ranks)}};
}

}  // namespace lockstep::observe
