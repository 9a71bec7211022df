// SPDX-License-Identifier: BSD-3-Clause
#include "observe/step_faults.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <span>

#include <fmt/format.h>

#include "observe/phrases.h"

namespace lockstep::observe {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;  // nanoseconds, as all times here
constexpr std::int64_t kSecond = 1000 * kMillisecond;
constexpr std::uint64_t kWarmUp = 5;              // steps that may be slow
constexpr std::size_t kLeastSteps = 3;            // that have to be slow, one after the other,
constexpr std::int64_t kLeastTime = kSecond / 2;  // and three quarters of those in this time,
constexpr std::size_t kManySteps = 32;            // or of so many
constexpr double kLate = 1.5;                     // times the others
constexpr std::int64_t kLeastLateness = 10 * kMillisecond;
constexpr double kSlowLink = 3;  // times as long as before
constexpr std::int64_t kLeastDelay = 20 * kMillisecond;
constexpr std::size_t kLeastBefore = 8;  // steps

constexpr std::array kComputation{Phase::forward, Phase::backward, Phase::optimizer, Phase::other};

std::int64_t time_in(const PhaseTimes& times, Phase phase) { return times[static_cast<std::size_t>(phase)]; }

std::int64_t computation(const PhaseTimes& times) {
  std::int64_t sum = 0;
  for (const auto phase : kComputation) sum += time_in(times, phase);
  return sum;
}

std::int64_t data(const PhaseTimes& times) { return time_in(times, Phase::data); }
std::int64_t communication(const PhaseTimes& times) { return time_in(times, Phase::communication); }
std::int64_t own_time(const PhaseTimes& times) { return computation(times) + data(times); }

using Measure = std::int64_t (*)(const PhaseTimes&);

PhaseTimes difference(const PhaseTimes& later, const PhaseTimes& earlier) {
  PhaseTimes times{};
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = later[i] - earlier[i];
  return times;
}

// The larger one of the two in the middle of an even number.
std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string milliseconds(std::int64_t nanoseconds) {
  return fmt::format("{:.0f} ms", static_cast<double>(nanoseconds) / kMillisecond);
}

// A rank of a group, and its membership.
struct Member {
  const Rank* rank = nullptr;
  const Membership* in_group = nullptr;
};

// A step of all members, which make it together: what each has spent in it.
using Row = std::vector<PhaseTimes>;

// The last steps that all ranks of a group have made.
class StepTable {
 public:
  StepTable(const Run& run, std::vector<Member> members) : run_(&run), members_(std::move(members)) {
    fill();
    recent_ = count_recent();
  }

  const std::vector<Member>& members() const { return members_; }
  const Rank& rank(std::size_t member) const { return *members_[member].rank; }
  bool can_be_judged() const { return recent_ > 0 && is_in_use() && !is_pipeline(); }

  std::span<const Row> recent() const { return std::span(rows_).last(recent_); }
  std::span<const Row> before() const { return std::span(rows_).first(rows_.size() - recent_); }

  // Whether it holds for the last steps.
  bool is_lasting(const std::function<bool(const Row&)>& holds) const {
    const auto rows = recent();
    return std::ranges::all_of(rows.last(kLeastSteps), holds) &&
           static_cast<std::size_t>(std::ranges::count_if(rows, holds)) * 4 >= rows.size() * 3;
  }

  // A step of the recent ones, on average.
  std::int64_t mean(std::size_t member, Measure measure) const {
    std::int64_t sum = 0;
    for (const auto& row : recent()) sum += measure(row[member]);
    return sum / static_cast<std::int64_t>(recent_);
  }

  // What the median of the other members has spent.
  static std::int64_t of_others(const Row& row, std::size_t member, Measure measure) {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i != member) values.push_back(measure(row[i]));
    }
    return median(std::move(values));
  }
  std::int64_t mean_of_others(std::size_t member, Measure measure) const {
    std::int64_t sum = 0;
    for (const auto& row : recent()) sum += of_others(row, member, measure);
    return sum / static_cast<std::int64_t>(recent_);
  }

  // Until the first step that is known.
  const Step& oldest(std::size_t member) const { return steps_[member].at(first_ - 1); }

 private:
  void fill() {
    auto last = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t most = 0;
    for (const auto& [rank, in_group] : members_) {
      auto& known = steps_.emplace_back();
      for (const auto& step : rank->progress->last) known[step.number] = step;
      last = std::min(last, rank->progress->steps);
      most = std::max(most, rank->progress->steps);
    }
    if (most > last + 2) return;  // they do not make their steps together
    last_ = first_ = last + 1;
    while (first_ > kWarmUp + 1 && std::ranges::all_of(steps_, [&](const auto& known) {
             return known.contains(first_ - 1) && known.contains(first_ - 2);
           }))
      --first_;
    for (auto number = first_; number <= last; ++number) {
      auto& row = rows_.emplace_back();
      for (const auto& known : steps_)
        row.push_back(difference(known.at(number).spent, known.at(number - 1).spent));
    }
    last_ = last;
  }

  std::size_t count_recent() const {
    std::int64_t time = 0;
    std::size_t count = 0;
    while (count < rows_.size() && (time < kLeastTime || count < kLeastSteps) && count < kManySteps) {
      const auto& row = rows_[rows_.size() - ++count];
      time += sum_of(row.front());
    }
    return (time < kLeastTime && count < kManySteps) || count < kLeastSteps || !is_fresh(time, count) ? 0
                                                                                                      : count;
  }

  bool is_fresh(std::int64_t time, std::size_t count) const {
    std::int64_t ended_at = 0;
    for (const auto& known : steps_) ended_at = std::max(ended_at, known.at(last_).ended_at);
    return run_->taken_at - ended_at < std::max(kSecond, 3 * time / static_cast<std::int64_t>(count));
  }

  static std::int64_t sum_of(const PhaseTimes& times) {
    std::int64_t sum = 0;
    for (const auto time : times) sum += time;
    return sum;
  }

  std::int64_t begin_of_last(std::size_t member) const { return steps_[member].at(last_ - 1).ended_at; }

  // Whether all make collectives of the group in each step.
  bool is_in_use() const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto& calls = members_[i].in_group->calls;
      const bool is_used = std::ranges::any_of(
          calls, [&](const Call& call) { return !call.is_message() && call.issued_at >= begin_of_last(i); });
      if (!is_used) return false;
    }
    return true;
  }

  bool is_pipeline() const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      for (const auto& member : rank(i).groups) {
        const bool has_messages = std::ranges::any_of(member.calls, [&](const Call& call) {
          return call.is_message() && call.issued_at >= begin_of_last(i);
        });
        if (has_messages) return true;
      }
    }
    return false;
  }

  const Run* run_;
  std::vector<Member> members_;
  std::vector<std::map<std::uint64_t, Step>> steps_;
  std::vector<Row> rows_;  // oldest first
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  std::size_t recent_ = 0;
};

// A member is late in a step if it has spent much more time by itself than the others, who have waited for it.
bool is_late(const Row& row, std::size_t member) {
  const auto own = own_time(row[member]);
  const auto others = StepTable::of_others(row, member, own_time);
  return static_cast<double>(own) >= kLate * static_cast<double>(others) && own - others >= kLeastLateness &&
         StepTable::of_others(row, member, communication) >= (own - others) / 2;
}

std::string call_in(const Membership& member) {
  for (auto call = member.calls.rbegin(); call != member.calls.rend(); ++call) {
    if (!call->is_message()) return fmt::format("{} of group {}", call->describe(), member.group);
  }
  return "group " + member.group;
}

std::string waiting_text(const StepTable& table, std::size_t late) {
  return fmt::format("they wait for it for {} a step, last in {}",
                     milliseconds(table.mean_of_others(late, communication)),
                     call_in(*table.members()[late].in_group));
}

// The part of the computation that makes the difference.
std::string_view slowest_phase(const StepTable& table, std::size_t late) {
  const auto excess = [&]<Phase kPhase>() {
    const Measure measure = [](const PhaseTimes& times) { return time_in(times, kPhase); };
    return std::pair(table.mean(late, measure) - table.mean_of_others(late, measure), kPhase);
  };
  const auto most = std::max({excess.operator()<Phase::forward>(), excess.operator()<Phase::backward>(),
                              excess.operator()<Phase::optimizer>(), excess.operator()<Phase::other>()});
  return most.second == Phase::other ? "the program's own code"
                                     : kPhaseNames[static_cast<std::size_t>(most.second)];
}

Verdict slow(const StepTable& table, std::size_t late) {
  return {
      Cause::slow,
      {},
      fmt::format(
          "{} is slow: in the last {} steps it computes for {} a step, the others for {}; most of the "
          "difference is in {}; {}. Compare the load and the clock of its cores with `lockstep doctor`, and "
          "the size of its batches.",
          table.rank(late).describe(), table.recent().size(), milliseconds(table.mean(late, computation)),
          milliseconds(table.mean_of_others(late, computation)), slowest_phase(table, late),
          waiting_text(table, late))};
}

Verdict starved(const Run& run, const StepTable& table, std::size_t late) {
  return {
      Cause::starved,
      {},
      fmt::format(
          "{} is starved of data: in the last {} steps it waits for batches for {} a step, the others for "
          "{}; {}{}. More workers of its loader or faster storage help.",
          table.rank(late).describe(), table.recent().size(), milliseconds(table.mean(late, data)),
          milliseconds(table.mean_of_others(late, data)), waiting_text(table, late),
          reading_text(run, table.rank(late)))};
}

std::int64_t lateness(const StepTable& table, std::size_t member, Measure measure) {
  return table.mean(member, measure) - table.mean_of_others(member, measure);
}

std::optional<Verdict> find_late(const Run& run, const StepTable& table) {
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < table.members().size(); ++i) {
    if (table.is_lasting([&](const Row& row) { return is_late(row, i); })) late.push_back(i);
  }
  if (late.empty()) return std::nullopt;
  const auto worst =
      *std::ranges::max_element(late, {}, [&](std::size_t i) { return lateness(table, i, own_time); });
  const bool is_starved = lateness(table, worst, data) > lateness(table, worst, computation);
  auto verdict = is_starved ? starved(run, table, worst) : slow(table, worst);
  for (const auto i : late) verdict.ranks.push_back(table.rank(i).rank);
  if (late.size() > 1) verdict.text += fmt::format(" All that are late: {}.", list(verdict.ranks));
  return verdict;
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
      group.backend.empty() ? "an unknown backend" : group.backend, group.group, list(verdict.ranks),
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

}  // namespace

std::optional<Verdict> judge_steps(const Run& run) {
  std::vector<StepTable> tables;
  for (auto& [name, members] : members_by_group(run)) {
    if (members.size() < 2 || !std::ranges::all_of(members, makes_steps)) continue;
    StepTable table(run, std::move(members));
    if (table.can_be_judged()) tables.push_back(std::move(table));
  }
  std::ranges::sort(tables, std::greater(), bytes_of);
  for (const auto& table : tables) {
    if (auto verdict = find_late(run, table)) return verdict;
  }
  for (const auto& table : tables) {
    if (auto verdict = find_slow_link(run, table)) return verdict;
  }
  return std::nullopt;
}

}  // namespace lockstep::observe
