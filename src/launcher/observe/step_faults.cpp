// SPDX-License-Identifier: BSD-3-Clause
#include "observe/step_faults.h"

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "observe/phrases.h"
#include "observe/step_table.h"

namespace lockstep::observe {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;  // nanoseconds, as all times here
constexpr double kLate = 1.5;                     // times the others
constexpr std::int64_t kLeastLateness = 10 * kMillisecond;
constexpr double kSlowLink = 3;  // times as long as before
constexpr std::int64_t kLeastDelay = 20 * kMillisecond;
constexpr std::size_t kLeastBefore = 8;  // steps

std::string milliseconds(std::int64_t nanoseconds) {
  return fmt::format("{:.0f} ms", static_cast<double>(nanoseconds) / kMillisecond);
}

// At least half of the time that it takes longer.
bool others_wait_for(const StepTable& table, std::size_t member) {
  const auto lateness = table.usual(member, own_time) - table.usual_of_others(member, own_time);
  return table.usual_of_others(member, communication) >= lateness / 2;
}

// `others`: what they spend by themselves.
bool is_late_in(const Row& row, std::size_t member, std::int64_t others, double factor) {
  const auto own = own_time(row[member]);
  return static_cast<double>(own) >= factor * static_cast<double>(others) && own - others >= kLeastLateness;
}

// A member is late if it spends much more time by itself than is usual for the others, who wait for it.
bool is_late(const StepTable& table, std::size_t member) {
  const auto usual = table.usual_of_others(member, own_time);
  return others_wait_for(table, member) &&
         table.is_lasting([&](const Row& row) { return is_late_in(row, member, usual, kLate); });
}

// A member is last if it is late, by the factor, in each of the recent steps.
bool is_last(const StepTable& table, std::size_t member, double factor) {
  return others_wait_for(table, member) && std::ranges::all_of(table.recent(), [&](const Row& row) {
           return is_late_in(row, member, StepTable::of_others(row, member, own_time), factor);
         });
}

std::string call_in(const Membership& member) {
  for (auto call = member.calls.rbegin(); call != member.calls.rend(); ++call) {
    if (!call->is_message()) return fmt::format("{} of group {}", call->describe(), member.group);
  }
  return "group " + member.group;
}

std::string waiting_text(const StepTable& table, std::size_t late) {
  return fmt::format("they wait for it for {} a step, last in {}",
                     milliseconds(table.usual_of_others(late, communication)),
                     call_in(*table.members()[late].in_group));
}

// The part of the computation that makes the difference.
std::string_view slowest_phase(const StepTable& table, std::size_t late) {
  const auto excess = [&]<Phase kPhase>() {
    const Measure measure = [](const PhaseTimes& times) { return time_in(times, kPhase); };
    return std::pair(table.usual(late, measure) - table.usual_of_others(late, measure), kPhase);
  };
  const auto most = std::max({excess.operator()<Phase::forward>(), excess.operator()<Phase::backward>(),
                              excess.operator()<Phase::optimizer>(), excess.operator()<Phase::other>()});
  if (most.second == Phase::other) return "the program's own code";
  if (most.second == Phase::optimizer)
    return "the optimizer, or the program's own code before the next batch of a loader or forward";
  return kPhaseNames[static_cast<std::size_t>(most.second)];
}

Verdict slow(const StepTable& table, std::size_t late) {
  return {
      Cause::slow,
      {},
      fmt::format(
          "{} is slow: in the last {} steps it computes for {} a step, the others for {}; most of the "
          "difference is in {}; {}. Compare the load and the clock of its cores with `lockstep doctor`, and "
          "the size of its batches.",
          table.rank(late).describe(), table.recent().size(), milliseconds(table.usual(late, computation)),
          milliseconds(table.usual_of_others(late, computation)), slowest_phase(table, late),
          waiting_text(table, late))};
}

Verdict starved(const Run& run, const StepTable& table, std::size_t late) {
  return {
      Cause::starved,
      {},
      fmt::format(
          "{} is starved of data: in the last {} steps it waits for batches for {} a step, the others for "
          "{}; {}{}. More workers of its loader or faster storage help.",
          table.rank(late).describe(), table.recent().size(), milliseconds(table.usual(late, data)),
          milliseconds(table.usual_of_others(late, data)), waiting_text(table, late),
          reading_text(run, table.rank(late)))};
}

std::int64_t lateness(const StepTable& table, std::size_t member, Measure measure) {
  return table.usual(member, measure) - table.usual_of_others(member, measure);
}

// That is later than all others.
std::size_t worst_of(const StepTable& table, const std::vector<std::size_t>& late) {
  return *std::ranges::max_element(late, {}, [&](std::size_t i) { return lateness(table, i, own_time); });
}

Verdict slow_or_starved(const Run& run, const StepTable& table, std::size_t late) {
  const bool is_starved = lateness(table, late, data) > lateness(table, late, computation);
  return is_starved ? starved(run, table, late) : slow(table, late);
}

std::optional<Verdict> find_late(const Run& run, const StepTable& table) {
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < table.members().size(); ++i) {
    if (is_late(table, i)) late.push_back(i);
  }
  if (late.empty()) return std::nullopt;
  auto verdict = slow_or_starved(run, table, worst_of(table, late));
  for (const auto i : late) verdict.ranks.push_back(table.rank(i).rank);
  if (late.size() > 1) verdict.text += fmt::format(" All that are late: {}.", list_ranks(verdict.ranks));
  return verdict;
}

std::optional<LastRank> find_last(const Run& run, const StepTable& table, double factor) {
  std::vector<std::size_t> last;
  for (std::size_t i = 0; i < table.members().size(); ++i) {
    if (is_last(table, i, factor)) last.push_back(i);
  }
  if (last.empty()) return std::nullopt;
  const auto worst = worst_of(table, last);
  return LastRank{.rank = &table.rank(worst), .text = slow_or_starved(run, table, worst).text};
}

// How long a step took before the recent ones.
struct Earlier {
  std::int64_t communication = 0;
  std::int64_t computation = 0;
};

// The least of all members: the last one to arrive waits for no other one.
std::int64_t transfer(const Row& row) {
  return communication(*std::ranges::min_element(row, {}, communication));
}

std::int64_t middle_computation(const Row& row) {
  std::vector<std::int64_t> values;
  for (const auto& times : row) values.push_back(computation(times));
  return median(std::move(values));
}

std::optional<Earlier> earlier_steps(const StepTable& table) {
  std::vector<std::int64_t> transfers;
  std::vector<std::int64_t> computations;
  for (const auto& row : table.before()) {
    transfers.push_back(transfer(row));
    computations.push_back(middle_computation(row));
  }
  if (transfers.size() < kLeastBefore) return std::nullopt;
  return Earlier{median(std::move(transfers)), median(std::move(computations))};
}

// The mean of all steps that are no longer known.
std::optional<Earlier> forgotten_steps(const StepTable& table) {
  Row means;
  for (std::size_t i = 0; i < table.members().size(); ++i) {
    const auto& oldest = table.oldest(i);
    if (oldest.number < kWarmUp + kLeastBefore) return std::nullopt;
    auto& mean = means.emplace_back(oldest.spent);
    for (auto& time : mean) time /= static_cast<std::int64_t>(oldest.number);
  }
  return Earlier{transfer(means), middle_computation(means)};
}

bool is_slow_link(const Row& row, const Earlier& earlier) {
  const auto now = transfer(row);
  return static_cast<double>(now) >= kSlowLink * static_cast<double>(earlier.communication) &&
         now - earlier.communication >= kLeastDelay &&
         static_cast<double>(middle_computation(row)) <= kLate * static_cast<double>(earlier.computation);
}

std::string where_text(const Run& run, const StepTable& table) {
  const auto& first = table.members().front();
  const auto here = table.members().size();
  if (here == static_cast<std::size_t>(first.rank->progress->size))
    return fmt::format("All ranks of the job are on host {}", run.host);
  return fmt::format(
      "{} of the {} ranks of the job are on host {}, which alone cannot tell the slow host or link: run "
      "`lockstep doctor` on all hosts",
      here, first.rank->progress->size, run.host);
}

Verdict slow_link(const Run& run, const StepTable& table, const Earlier& earlier) {
  Verdict verdict{.cause = Cause::slow_link};
  std::vector<std::int64_t> transfers;
  for (const auto& row : table.recent()) transfers.push_back(transfer(row));
  for (const auto& member : table.members()) verdict.ranks.push_back(member.rank->rank);
  const auto& group = *table.members().front().in_group;
  verdict.text = fmt::format(
      "Communication over {} in group {} is slow: {} wait for {} a step in calls that all have entered, in the last "
      "{} steps; before it was {}. They compute as long as before. The last call is {}. {}.",
      group.backend.empty() ? "an unknown backend" : group.backend, group.group, list_ranks(verdict.ranks),
      milliseconds(median(std::move(transfers))), table.recent().size(), milliseconds(earlier.communication),
      call_in(group), where_text(run, table));
  return verdict;
}

std::optional<Verdict> find_slow_link(const Run& run, const StepTable& table) {
  for (const auto& earlier : {earlier_steps(table), forgotten_steps(table)}) {
    if (earlier && table.is_lasting([&](const Row& row) { return is_slow_link(row, *earlier); }))
      return slow_link(run, table, *earlier);
  }
  return std::nullopt;
}

std::map<std::string, std::vector<Member>> members_by_group(const Run& run) {
  std::map<std::string, std::vector<Member>> groups;
  for (const auto& rank : run.ranks) {
    for (const auto& member : rank.groups) groups[member.group].push_back({&rank, &member});
  }
  return groups;
}

bool makes_steps(const Member& member) {
  return member.rank->life == Life::alive && member.rank->progress && member.rank->progress->steps > kWarmUp;
}

// What the members have sent: the group of the gradients has the most.
std::uint64_t bytes_of(const StepTable& table) {
  std::uint64_t bytes = 0;
  for (const auto& member : table.members()) bytes += member.in_group->bytes;
  return bytes;
}

// The group with the most bytes first.
std::vector<StepTable> tables_of(const Run& run, std::optional<std::size_t> recent) {
  std::vector<StepTable> tables;
  for (auto& [name, members] : members_by_group(run)) {
    if (members.size() < 2 || !std::ranges::all_of(members, makes_steps)) continue;
    StepTable table(run, std::move(members), recent);
    if (table.can_be_judged()) tables.push_back(std::move(table));
  }
  std::ranges::sort(tables, std::greater(), bytes_of);
  return tables;
}

}  // namespace

std::optional<Verdict> judge_steps(const Run& run) {
  const auto tables = tables_of(run, std::nullopt);
  for (const auto& table : tables) {
    if (auto verdict = find_late(run, table)) return verdict;
  }
  for (const auto& table : tables) {
    if (auto verdict = find_slow_link(run, table)) return verdict;
  }
  return std::nullopt;
}

std::optional<LastRank> judge_last_rank(const Run& run, double factor, std::size_t steps) {
  for (const auto& table : tables_of(run, steps)) {
    if (auto last = find_last(run, table, factor)) return last;
  }
  return std::nullopt;
}

}  // namespace lockstep::observe
