// SPDX-License-Identifier: BSD-3-Clause
#include "observe/report/history.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::observe {
namespace {

// The ranks that are named stand still, and are alive.
bool is_stall(Cause cause) {
  return cause == Cause::missing || cause == Cause::stopped || cause == Cause::starved ||
         cause == Cause::deadlock || cause == Cause::mismatch;
}

constexpr std::int64_t kSameFault = 3'000'000'000;
// A look adds a point of its own if no step has ended for so long.
constexpr std::int64_t kLongStep = 400'000'000;  // nanoseconds

// What a rank has entered of a group: [sequence] time and call, ascending, collectives only.
using Arrivals = std::vector<const Call*>;

Arrivals arrivals_of(const Membership& member, std::uint64_t after) {
  Arrivals arrivals;
  for (const auto& call : member.calls) {
    if (call.sequence > after && !call.is_message()) arrivals.push_back(&call);
  }
  return arrivals;
}

const Call* arrival_at(const Arrivals& arrivals, std::uint64_t sequence) {
  const auto found = std::ranges::lower_bound(arrivals, sequence, {}, &Call::sequence);
  return found != arrivals.end() && (*found)->sequence == sequence ? *found : nullptr;
}

// A group of which all ranks were read.
struct CompleteGroup {
  int size = 0;
  std::vector<const Rank*> ranks{};
  std::vector<const Membership*> members{};
};

std::map<std::string, CompleteGroup> complete_groups(const Run& run) {
  std::map<std::string, CompleteGroup> groups;
  for (const auto& rank : run.ranks) {
    for (const auto& member : rank.groups) {
      auto& group = groups[member.group];
      group.size = member.size;
      group.ranks.push_back(&rank);
      group.members.push_back(&member);
    }
  }
  std::erase_if(groups, [](const auto& entry) {
    return entry.second.size < 2 || static_cast<int>(entry.second.ranks.size()) != entry.second.size;
  });
  return groups;
}

// Until `now`.
PhaseTimes spent_until(const Progress& progress, std::int64_t now) {
  auto spent = progress.spent;
  spent.at(static_cast<std::size_t>(progress.phase)) += std::max<std::int64_t>(now - progress.phase_since, 0);
  return spent;
}

}  // namespace

void RankPoint::merge(const RankPoint& later) {
  const auto shorter =
      shortest != 0 && (later.shortest == 0 || shortest < later.shortest) ? shortest : later.shortest;
  const auto longer = std::max(longest, later.longest);
  *this = later;
  shortest = shorter;
  longest = longer;
}

void MemoryPoint::merge(const MemoryPoint& later) {
  at = later.at;
  resident = std::max(resident, later.resident);
  gathered = std::max(gathered, later.gathered);
}

void NumberPoint::merge(const NumberPoint& later) {
  at = later.at;
  step = later.step;
  if (later.count != 0) {
    least = count == 0 ? later.least : std::min(least, later.least);
    most = count == 0 ? later.most : std::max(most, later.most);
  }
  sum += later.sum;
  count += later.count;
  not_finite += later.not_finite;
}

void LatePoint::merge(const LatePoint& later) {
  at = later.at;
  calls += later.calls;
  sum += later.sum;
  most = std::max(most, later.most);
}

void History::add(const Run& run, const Verdict& verdict) {
  for (const auto& rank : run.ranks) {
    auto& track = track_of(rank, run.taken_at);
    if (rank.life == Life::alive || rank.life == Life::stopped) track.last_seen = run.taken_at;
    for (const auto& member : rank.groups) {
      auto& [backend, bytes] = track.traffic[member.group];
      backend = member.backend;
      bytes = std::max(bytes, member.bytes);
    }
    if (rank.progress) add_progress(track, rank, run.taken_at);
  }
  add_arrivals(run);
  if (verdict.cause != Cause::none) add_fault(run, verdict);
}

Track& History::track_of(const Rank& rank, std::int64_t now) {
  // The newest tracks are those of the present ranks.
  for (auto track = tracks_.rbegin(); track != tracks_.rend(); ++track) {
    if (track->pid == rank.pid && track->thread == rank.thread) {
      track->rank = rank.rank;  // known once it has met the others
      return *track;
    }
  }
  if (tracks_.size() == kTracks) {
    number_series_ -= tracks_.front().numbers.size();
    tracks_.pop_front();
    ++dropped_tracks_;
  }
  tracks_.push_back({.rank = rank.rank,
                     .pid = rank.pid,
                     .thread = rank.thread,
                     .restarts = rank.restarts,
                     .first_seen = rank.progress ? rank.progress->began_at : now,
                     .points = Thinned<RankPoint>(kMostItems),
                     .memory = Thinned<MemoryPoint>(kMostItems),
                     .late = Thinned<LatePoint>(kMostItems)});
  share_items();
  return tracks_.back();
}

void History::share_items() {
  const auto share = [](std::size_t series) {
    return std::clamp(kItems / std::max<std::size_t>(series, 1), kFewestItems, kMostItems);
  };
  const auto each = share(tracks_.size());
  for (auto& track : tracks_) {
    track.points.set_limit(each);
    track.memory.set_limit(each);
    track.late.set_limit(each);
    for (auto& [name, number] : track.numbers) number.set_limit(share(number_series_));
  }
}

void History::add_progress(Track& track, const Rank& rank, std::int64_t now) {
  const auto& progress = *rank.progress;
  const auto last_at = track.points.items().empty() ? 0 : track.points.items().back().at;
  std::int64_t ended_at = last_at;
  const auto* before = static_cast<const Step*>(nullptr);
  for (const auto& step : progress.last) {
    if (step.number > track.steps) {
      ended_at = std::max(step.ended_at, ended_at + 1);  // it may end between the look and its time
      RankPoint point{.at = ended_at, .steps = step.number, .samples = step.samples, .spent = step.spent};
      if (before != nullptr && before->number + 1 == step.number)
        point.shortest = point.longest = step.ended_at - before->ended_at;
      if (step.number > track.steps + 1) track.unseen_steps += step.number - track.steps - 1;
      track.points.add(point);
      track.steps = step.number;
    }
    before = &step;
  }
  const bool is_here = rank.life == Life::alive || rank.life == Life::stopped;
  if (is_here && now - std::max(ended_at, progress.began_at) > kLongStep) {
    track.points.add(
        {.at = now, .steps = track.steps, .samples = progress.samples, .spent = spent_until(progress, now)});
  }
  for (const auto& sample : progress.memory) {
    const auto seen = track.memory.items().empty() ? 0 : track.memory.items().back().at;
    if (sample.at > seen)
      track.memory.add({.at = sample.at, .resident = sample.resident, .gathered = progress.gathered});
  }
  add_numbers(track, progress, now);
}

void History::add_numbers(Track& track, const Progress& progress, std::int64_t now) {
  const bool is_new_step = track.numbers.empty() || track.points.items().empty() ||
                           progress.steps != track.numbers.begin()->second.items().back().step;
  for (const auto& [name, value] : progress.numbers) {
    auto found = track.numbers.find(name);
    if (found == track.numbers.end()) {
      if (number_series_ == kNumberSeries) {
        ++dropped_numbers_;
        continue;
      }
      found = track.numbers.emplace(name, Thinned<NumberPoint>(kMostItems)).first;
      ++number_series_;
      share_items();
    } else if (!is_new_step) {
      const auto& last = found->second.items().back();
      const bool same = std::isfinite(value) ? last.count > 0 && last.most == value && last.least == value
                                             : last.not_finite > 0;
      if (same) continue;
    }
    const bool is_finite = std::isfinite(value);
    const double finite = is_finite ? value : 0;
    found->second.add({.at = now,
                       .step = progress.steps,
                       .least = finite,
                       .most = finite,
                       .sum = finite,
                       .count = is_finite ? 1U : 0U,
                       .not_finite = is_finite ? 0U : 1U});
  }
}

void History::add_arrivals(const Run& run) {
  for (const auto& [name, group] : complete_groups(run)) {
    std::vector<std::int64_t> pids;
    for (const auto* rank : group.ranks) pids.push_back(rank->thread);
    auto& [known, last] = groups_[name];
    if (known != pids) {
      known = std::move(pids);
      last = 0;
    }
    std::vector<Arrivals> arrivals;
    std::uint64_t complete = std::numeric_limits<std::uint64_t>::max();  // entered by all
    for (const auto* member : group.members) {
      arrivals.push_back(arrivals_of(*member, last));
      complete = std::min(complete, arrivals.back().empty() ? last : arrivals.back().back()->sequence);
    }
    if (complete <= last) continue;
    std::vector<LatePoint> points(group.ranks.size());
    for (const auto* call : arrivals.front()) {
      if (call->sequence > complete) break;
      std::vector<std::int64_t> times;
      for (const auto& of_rank : arrivals) {
        if (const auto* const entered = arrival_at(of_rank, call->sequence))
          times.push_back(entered->issued_at);
      }
      if (times.size() != group.ranks.size()) continue;  // forgotten by one
      ++collectives_seen_;
      const auto [first, slowest] = std::ranges::minmax_element(times);
      for (std::size_t i = 0; i < times.size(); ++i)
        points[i].merge({.at = times[i], .calls = 1, .sum = times[i] - *first, .most = times[i] - *first});
      const auto place = static_cast<std::size_t>(slowest - times.begin());
      ++track_of(*group.ranks[place], run.taken_at).last_arrivals;
      keep_late({.at = *slowest,
                 .late = *slowest - *first,
                 .rank = group.ranks[place]->rank,
                 .call = call->describe(),
                 .group = name});
    }
    collectives_ += complete - last;
    last = complete;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].calls != 0) track_of(*group.ranks[i], run.taken_at).late.add(points[i]);
    }
  }
}

void History::keep_late(LateArrival arrival) {
  const auto least = std::ranges::min_element(late_, {}, &LateArrival::late);
  if (late_.size() == kLateArrivals) {
    if (least->late >= arrival.late) return;
    late_.erase(least);
  }
  late_.push_back(std::move(arrival));
}

void History::add_fault(const Run& run, const Verdict& verdict) {
  const int restarts = run.ranks.empty() ? 0 : run.ranks.front().restarts;
  if (!faults_.empty()) {
    auto& last = faults_.back();
    const bool goes_on = last.verdict.cause == verdict.cause && last.verdict.ranks == verdict.ranks &&
                         last.restarts == restarts && run.taken_at - last.last < kSameFault;
    if (goes_on) {
      last.last = run.taken_at;
      last.verdict = verdict;
      return;
    }
  }
  if (faults_.size() == kFaults) {
    ++dropped_faults_;
    return;
  }
  faults_.push_back({.first = run.taken_at, .last = run.taken_at, .restarts = restarts, .verdict = verdict});
}

bool History::lacks_stacks(const Run& run) const {
  if (faults_.empty() || stacks_ == kStacks) return false;
  const auto& fault = faults_.back();
  return fault.last == run.taken_at && fault.last - fault.first >= kHang && !fault.stacks_read &&
         is_stall(fault.verdict.cause);
}

void History::add_stacks(std::string text, std::int64_t now) {
  auto& fault = faults_.back();
  fault.stacks = std::move(text);
  fault.stacks_read = true;
  fault.last = std::max(fault.last, now);  // to read them may take longer than kSameFault
  ++stacks_;
}

}  // namespace lockstep::observe
