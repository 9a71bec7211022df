// SPDX-License-Identifier: BSD-3-Clause
#include "observe/frozen_ranks.h"

#include <algorithm>
#include <bit>
#include <string>

namespace lockstep::observe {
namespace {

// Whether another rank has not come yet. The peers of a message are not known to have come.
bool is_missed(const Run& run, const Rank& rank, const std::string& group, const Call& call) {
  return call.is_message() || std::ranges::any_of(run.ranks, [&](const Rank& other) {
           return &other != &rank && std::ranges::any_of(other.groups, [&](const Membership& member) {
             return member.group == group && member.last_collective() < call.sequence;
           });
         });
}

// With GPUs the thread that trains waits for the device, not in a call.
bool has_missed_call(const Run& run, const Rank& rank) {
  return std::ranges::any_of(rank.groups, [&](const Membership& member) {
    return std::ranges::any_of(member.calls, [&](const Call& call) {
      return call.number > member.completed && is_missed(run, rank, member.group, call);
    });
  });
}

// The phase covers calls of groups with other hosts, too, and the meeting of ranks after a loss.
bool waits_for_others(const Run& run, const Rank& rank) {
  const bool is_in_call = std::ranges::any_of(rank.groups, [](const Membership& member) {
    return member.awaited != 0 || member.unfinished() != nullptr;
  });
  return is_in_call || has_missed_call(run, rank) ||
         (rank.progress && rank.progress->phase == Phase::communication);
}

// The process of one that has left the run may go on for as long as it wants.
bool has_ended(const Rank& rank) {
  return rank.life == Life::dead || rank.life == Life::finished || (rank.progress && rank.progress->has_left);
}

bool moves_bytes(const Rank& rank) {
  return rank.progress && (rank.progress->phase == Phase::checkpoint || rank.progress->phase == Phase::data);
}

// While a thread waits for the disk, as in fsync(), no byte counts.
bool is_known_to_go_on(const Rank& rank, const ProcessView& view) {
  const bool is_checkpoint = rank.progress && rank.progress->phase == Phase::checkpoint;
  return view.is_traced(rank) || (is_checkpoint && view.waits_in_kernel(rank));
}

// Differs from an earlier one if the rank has made progress since then.
std::vector<std::uint64_t> published_by(const Rank& rank) {
  std::vector<std::uint64_t> values;
  for (const auto& member : rank.groups)
    values.insert(values.end(), {member.issued, member.completed, member.awaited, member.failed});
  if (!rank.progress) return values;
  const auto& progress = *rank.progress;
  values.insert(
      values.end(),
      {progress.steps, progress.samples, static_cast<std::uint64_t>(progress.epoch),
       static_cast<std::uint64_t>(progress.gathered), static_cast<std::uint64_t>(progress.phase),
       static_cast<std::uint64_t>(progress.phase_since), static_cast<std::uint64_t>(progress.reading_since)});
  for (const auto& [name, value] : progress.numbers) values.push_back(std::bit_cast<std::uint64_t>(value));
  return values;
}

}  // namespace

std::vector<FrozenRank> FrozenRanks::look(const Run& run, const ProcessView& view) {
  std::map<Key, Known> known;
  std::vector<FrozenRank> frozen;
  for (const auto& rank : run.ranks) {
    if (has_ended(rank)) continue;
    Known now{.published = published_by(rank), .looked_at = run.taken_at};
    if (moves_bytes(rank)) now.published.push_back(view.bytes(rank));
    const auto before = known_.find({rank.pid, rank.thread});
    const bool can_freeze = rank.life == Life::stopped || !waits_for_others(run, rank);
    if (can_freeze && before != known_.end() && before->second.published == now.published &&
        !is_known_to_go_on(rank, view)) {
      const auto passed = run.taken_at - before->second.looked_at;
      now.silent_for = before->second.silent_for + std::min(passed, limit_ / 4);
      if (now.silent_for >= limit_) frozen.push_back({&rank, now.silent_for});
    }
    known.emplace(Key{rank.pid, rank.thread}, std::move(now));
  }
  known_ = std::move(known);
  return frozen;
}

}  // namespace lockstep::observe
