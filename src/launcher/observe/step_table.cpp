// SPDX-License-Identifier: BSD-3-Clause
#include "observe/step_table.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>

namespace lockstep::observe {
namespace {

constexpr std::size_t kLeastSteps = 3;            // that have to be slow, one after the other,
constexpr std::int64_t kLeastTime = 900'000'000;  // nanoseconds: and three quarters of those in this time,
constexpr std::size_t kUnsettled = 2;             // the latest steps, which some ranks may not have made yet
constexpr std::size_t kManySteps = 48;            // or of so many
constexpr std::int64_t kFreshness = 1'000'000'000;  // nanoseconds

PhaseTimes difference(const PhaseTimes& later, const PhaseTimes& earlier) {
  PhaseTimes times{};
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = later[i] - earlier[i];
  return times;
}

std::int64_t sum_of(const PhaseTimes& times) {
  std::int64_t sum = 0;
  for (const auto time : times) sum += time;
  return sum;
}

}  // namespace

std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

StepTable::StepTable(const Run& run, std::vector<Member> members, std::optional<std::size_t> recent)
    : run_(&run), members_(std::move(members)) {
  fill();
  recent_ = recent ? checked_recent(*recent) : count_recent();
}

bool StepTable::is_lasting(const std::function<bool(const Row&)>& holds) const {
  const auto rows = recent();
  return std::ranges::all_of(rows.last(kLeastSteps), holds) &&
         static_cast<std::size_t>(std::ranges::count_if(rows, holds)) * 4 >= rows.size() * 3;
}

std::int64_t StepTable::usual(std::size_t member, Measure measure) const {
  std::vector<std::int64_t> values;
  for (const auto& row : recent()) values.push_back(measure(row[member]));
  return median(std::move(values));
}

std::int64_t StepTable::of_others(const Row& row, std::size_t member, Measure measure) {
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i != member) values.push_back(measure(row[i]));
  }
  return median(std::move(values));
}

std::int64_t StepTable::usual_of_others(std::size_t member, Measure measure) const {
  std::vector<std::int64_t> values;
  for (const auto& row : recent()) values.push_back(of_others(row, member, measure));
  return median(std::move(values));
}

void StepTable::fill() {
  auto last = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t most = 0;
  for (const auto& [rank, in_group] : members_) {
    auto& known = steps_.emplace_back();
    for (const auto& step : rank->progress->last) known[step.number] = step;
    last = std::min(last, rank->progress->steps);
    most = std::max(most, rank->progress->steps);
  }
  if (most > last + 2) {
    if (!align()) return;  // they do not make their steps together
    for (const auto& known : steps_) last = std::min(last, known.rbegin()->first);
  }
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

// A replacement counts its steps from 0: those that end at the same time are one step, and get the number of the rank
// that has made the fewest. The latest steps may not have ended on all ranks.
bool StepTable::align() {
  const auto fewest = std::ranges::min_element(
      steps_, {}, [](const auto& known) { return known.empty() ? 0 : known.rbegin()->first; });
  if (fewest->size() < kUnsettled + kLeastSteps + 1) return false;
  std::vector<Step> marks;  // latest first
  for (auto step = std::next(fewest->rbegin(), kUnsettled); marks.size() <= kLeastSteps; ++step)
    marks.push_back(step->second);
  std::vector<std::map<std::uint64_t, Step>> aligned;
  for (const auto& known : steps_) {
    const auto distance = [&](const auto& step) {
      return std::abs(step.second.ended_at - marks[0].ended_at);
    };
    if (known.empty()) return false;
    const auto nearest = std::ranges::min_element(known, {}, distance)->first;
    if (nearest < marks[0].number) return false;
    const auto shift = nearest - marks[0].number;
    for (std::size_t i = 0; i < kLeastSteps; ++i) {
      const auto same = known.find(marks[i].number + shift);
      const auto span = marks[i].ended_at - marks[i + 1].ended_at;
      if (same == known.end() || std::abs(same->second.ended_at - marks[i].ended_at) * 4 > span) return false;
    }
    auto& renumbered = aligned.emplace_back();
    for (const auto& [number, step] : known)
      if (number > shift) renumbered[number - shift] = step;
  }
  steps_ = std::move(aligned);
  return true;
}

std::size_t StepTable::count_recent() const {
  std::int64_t time = 0;
  std::size_t count = 0;
  while (count < rows_.size() && (time < kLeastTime || count < kLeastSteps) && count < kManySteps) {
    const auto& row = rows_[rows_.size() - ++count];
    time += sum_of(row.front());
  }
  return (time < kLeastTime && count < kManySteps) || count < kLeastSteps || !is_fresh(time, count) ? 0
                                                                                                    : count;
}

// 0 if so many are not known, or are long ago.
std::size_t StepTable::checked_recent(std::size_t wanted) const {
  if (rows_.size() < wanted) return 0;
  std::int64_t time = 0;
  for (const auto& row : std::span(rows_).last(wanted)) time += sum_of(row.front());
  return is_fresh(time, wanted) ? wanted : 0;
}

bool StepTable::is_fresh(std::int64_t time, std::size_t count) const {
  std::int64_t ended_at = 0;
  for (const auto& known : steps_) ended_at = std::max(ended_at, known.at(last_).ended_at);
  return run_->taken_at - ended_at < std::max(kFreshness, 3 * time / static_cast<std::int64_t>(count));
}

bool StepTable::is_in_use() const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& calls = members_[i].in_group->calls;
    const bool is_used = std::ranges::any_of(
        calls, [&](const Call& call) { return !call.is_message() && call.issued_at >= begin_of_last(i); });
    if (!is_used) return false;
  }
  return true;
}

bool StepTable::is_pipeline() const {
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

}  // namespace lockstep::observe
