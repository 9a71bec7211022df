// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "observe/run.h"

namespace lockstep::observe {

inline constexpr std::uint64_t kWarmUp = 5;  // steps that may be slow

inline constexpr std::array kComputation{Phase::forward, Phase::backward, Phase::optimizer, Phase::other};

inline std::int64_t time_in(const PhaseTimes& times, Phase phase) {
  return times[static_cast<std::size_t>(phase)];
}

inline std::int64_t computation(const PhaseTimes& times) {
  std::int64_t sum = 0;
  for (const auto phase : kComputation) sum += time_in(times, phase);
  return sum;
}

inline std::int64_t data(const PhaseTimes& times) { return time_in(times, Phase::data); }
inline std::int64_t communication(const PhaseTimes& times) { return time_in(times, Phase::communication); }
inline std::int64_t own_time(const PhaseTimes& times) { return computation(times) + data(times); }

using Measure = std::int64_t (*)(const PhaseTimes&);

// The larger of the two in the middle if their number is even.
std::int64_t median(std::vector<std::int64_t> values);

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
  // The members are ranks that make steps. `recent`: so many of the last steps are the recent ones; by default those of
  // about a second.
  StepTable(const Run& run, std::vector<Member> members, std::optional<std::size_t> recent = std::nullopt);

  const std::vector<Member>& members() const { return members_; }
  const Rank& rank(std::size_t member) const { return *members_[member].rank; }
  bool can_be_judged() const { return recent_ > 0 && is_in_use() && !is_pipeline(); }

  std::span<const Row> recent() const { return std::span(rows_).last(recent_); }
  std::span<const Row> before() const { return std::span(rows_).first(rows_.size() - recent_); }

  // Whether it holds for the last three steps and three quarters of the recent ones.
  bool is_lasting(const std::function<bool(const Row&)>& holds) const;

  // What is usual for a member in the recent steps.
  std::int64_t usual(std::size_t member, Measure measure) const;

  // What the median of the other members has spent.
  static std::int64_t of_others(const Row& row, std::size_t member, Measure measure);
  // What is usual for them in the recent steps.
  std::int64_t usual_of_others(std::size_t member, Measure measure) const;

  // Until the first step that is known.
  const Step& oldest(std::size_t member) const { return steps_[member].at(first_ - 1); }

 private:
  void fill();
  bool align();
  std::size_t count_recent() const;
  std::size_t checked_recent(std::size_t wanted) const;
  bool is_fresh(std::int64_t time, std::size_t count) const;
  std::int64_t begin_of_last(std::size_t member) const { return steps_[member].at(last_ - 1).ended_at; }
  // Whether all make collectives of the group in each step.
  bool is_in_use() const;
  // Whether a member sends or receives messages.
  bool is_pipeline() const;

  const Run* run_;
  std::vector<Member> members_;
  std::vector<std::map<std::uint64_t, Step>> steps_;
  std::vector<Row> rows_;  // oldest first
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  std::size_t recent_ = 0;
};

}  // namespace lockstep::observe
