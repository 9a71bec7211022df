// SPDX-License-Identifier: BSD-3-Clause
#include "observe/verdict.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "observe/call_names.h"
#include "observe/memory_growth.h"
#include "observe/phrases.h"
#include "observe/step_faults.h"

namespace lockstep::observe {
namespace {

constexpr std::int64_t kPatience = 1'000'000'000;             // nanoseconds
constexpr std::int64_t kCheckpointPatience = 60 * kPatience;  // with a rank that saves or loads one
constexpr std::array kCauses{"none",     "mismatch", "dead", "stopped",   "missing",
                             "deadlock", "starved",  "slow", "slow_link", "memory"};

// A rank that waits in a call, or whose call has failed.
struct Wait {
  const Rank* rank = nullptr;
  const Membership* member = nullptr;
  const Call* call = nullptr;
  std::int64_t age = 0;  // nanoseconds
  bool has_failed = false;
};

const Membership* membership_in(const Rank& rank, const std::string& group) {
  const auto found = std::ranges::find(rank.groups, group, &Membership::group);
  return found == rank.groups.end() ? nullptr : &*found;
}

// The last one of the rank, over all groups.
std::optional<Wait> wait_of(const Run& run, const Rank& rank) {
  std::optional<Wait> last;
  for (const auto& member : rank.groups) {
    const auto* const call = member.unfinished();
    if (call == nullptr || (last && last->call->issued_at > call->issued_at)) continue;
    last = {&rank, &member, call, run.taken_at - call->issued_at, member.failed == call->number};
  }
  return last;
}

// The last call of the rank in any group.
const Call* last_call(const Rank& rank) {
  const Call* last = nullptr;
  for (const auto& member : rank.groups) {
    const auto* const call = member.calls.empty() ? nullptr : &member.calls.back();
    if (call != nullptr && (last == nullptr || call->issued_at > last->issued_at)) last = call;
  }
  return last;
}

std::string last_call_text(const Run& run, const Rank& rank) {
  const auto* const call = last_call(rank);
  if (call == nullptr) return "it has made no call yet";
  return fmt::format("its last call was {}, {} ago", call->describe(),
                     seconds_text(run.taken_at - call->issued_at));
}

// How long the rank has been in its phase.
std::int64_t phase_age(const Run& run, const Rank& rank) {
  return rank.progress ? run.taken_at - rank.progress->phase_since : 0;
}

Phase phase_of(const Rank& rank) { return rank.progress ? rank.progress->phase : Phase::other; }

// What a living rank that makes no call is doing.
std::string phase_text(const Run& run, const Rank& rank) {
  const auto age = seconds_text(phase_age(run, rank));
  switch (phase_of(rank)) {
    case Phase::forward:
    case Phase::backward:
      return fmt::format("has been in {} for {} ({})", kPhaseNames[static_cast<std::size_t>(phase_of(rank))],
                         age, rank.activity);
    case Phase::data:
      return fmt::format("waits for a batch, {}{}", age, reading_text(run, rank));
    case Phase::checkpoint:
      return fmt::format("saves or loads a checkpoint, {} ({})", age, rank.activity);
    default:
      return fmt::format("runs the program's own code ({})", rank.activity);
  }
}

// What a rank that makes no call is doing.
std::string state_text(const Run& run, const Rank& rank) {
  const auto last = last_call_text(run, rank);
  switch (rank.life) {
    case Life::dead:
      return "is dead; " + last;
    case Life::finished:
      return "has left the run, as with uneven data; " + last;
    case Life::stopped:
      return "is stopped by a signal or a debugger; " + last;
    case Life::alive:
      break;
  }
  return fmt::format("{}; {}", phase_text(run, rank), last);
}

bool differ(const Call& one, const Call& other) {
  return one.name != other.name || one.dtype != other.dtype || one.op != other.op || one.peer != other.peer ||
         (!is_uneven(one.name) && one.shape != other.shape);
}

// Why a rank keeps others waiting for so long. It is starved if it has waited for data most of this time.
Cause cause_of(const Run& run, const Rank& rank, std::int64_t wait) {
  if (rank.life == Life::dead) return Cause::dead;
  if (rank.life == Life::stopped) return Cause::stopped;
  const bool is_starved =
      rank.life == Life::alive && phase_of(rank) == Phase::data && phase_age(run, rank) >= wait / 2;
  return is_starved ? Cause::starved : Cause::missing;
}

class Judge {
 public:
  explicit Judge(const Run& run) : run_(run) {
    for (const auto& rank : run.ranks) {
      if (const auto wait = wait_of(run, rank)) waits_.push_back(*wait);
    }
    // The oldest one, whose cause is the cause of the others.
    std::ranges::sort(waits_, std::greater(), &Wait::age);
  }

  Verdict judge() const {
    for (const auto& wait : waits_) {
      if (auto verdict = find_mismatch(wait)) return *verdict;
    }
    for (const auto& wait : waits_) {
      if (auto verdict = follow(wait)) return usual_cause_of(*verdict);
    }
    for (const auto& rank : run_.ranks) {
      if (rank.life == Life::dead || rank.life == Life::stopped) return blame(rank, "", 0);
    }
    if (auto verdict = find_absent()) return *verdict;
    if (auto verdict = judge_steps(run_)) return *verdict;
    if (auto verdict = judge_memory(run_)) return *verdict;
    return {.text = all_is_well()};
  }

  std::string stall_of(const Rank& rank) const {
    for (const auto& wait : waits_) {
      const auto missing = missing_in(wait);
      if (std::ranges::find(missing, &rank) != missing.end()) return blame(rank, wait).text;
    }
    return blame(rank, "", 0).text;
  }

 private:
  // A host that was read earlier does not know yet what others wait for.
  std::int64_t patience() const { return kPatience + run_.skew; }

  const Wait* wait_of_rank(const Rank& rank) const {
    const auto found = std::ranges::find(waits_, &rank, &Wait::rank);
    return found == waits_.end() ? nullptr : &*found;
  }

  // A rank that is late in every step is so for this reason now, too, unless it is much later than usual.
  Verdict usual_cause_of(const Verdict& stall) const {
    if (stall.cause != Cause::missing && stall.cause != Cause::starved) return stall;
    const auto usual = judge_steps(run_);
    return usual && usual->ranks == stall.ranks ? *usual : stall;
  }

  Verdict blame(const Rank& rank, const std::string& call, std::int64_t wait) const {
    return {cause_of(run_, rank, wait),
            {rank.rank},
            fmt::format("{}{} {}.", rank.describe(), call, state_text(run_, rank))};
  }

  Verdict blame(const Rank& rank, const Wait& wait) const {
    return blame(rank,
                 fmt::format(" has not entered {} of group {}, {}. It", wait.call->describe(),
                             wait.member->group, waiting_text(wait)),
                 wait.age);
  }

  // Calls of the group with the same place in the order of its collectives: [text] the ranks that made it.
  std::optional<Verdict> find_mismatch(const Wait& wait) const {
    if (wait.call->is_message()) return std::nullopt;
    std::vector<std::pair<const Call*, std::vector<int>>> kinds;
    for (const auto& rank : run_.ranks) {
      const auto* const member = membership_in(rank, wait.member->group);
      const auto* const call = member == nullptr ? nullptr : member->collective(wait.call->sequence);
      if (call == nullptr) continue;
      const auto same =
          std::ranges::find_if(kinds, [&](const auto& kind) { return !differ(*kind.first, *call); });
      same == kinds.end() ? (void)kinds.emplace_back(call, std::vector{rank.rank})
                          : same->second.push_back(rank.rank);
    }
    if (kinds.size() < 2) return std::nullopt;
    std::ranges::stable_sort(kinds, std::greater(), [](const auto& kind) { return kind.second.size(); });
    const bool is_tie = kinds[0].second.size() == kinds[1].second.size();
    // The ranks that are about to come decide which side is the minority.
    if (is_tie && wait.age < patience() && !wait.has_failed && !missing_in(wait).empty()) return std::nullopt;
    Verdict verdict{.cause = Cause::mismatch};
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      texts.push_back(fmt::format("{} made {}", list_ranks(kinds[i].second), kinds[i].first->describe()));
      if (i > 0 || is_tie)
        verdict.ranks.insert(verdict.ranks.end(), kinds[i].second.begin(), kinds[i].second.end());
    }
    verdict.text = fmt::format(
        "The ranks of group {} made different calls in the same place: {}. Every rank has to make "
        "the same calls in the same order.",
        wait.member->group, fmt::join(texts, ", but "));
    return verdict;
  }

  // The ranks without which the call cannot end.
  std::vector<const Rank*> missing_in(const Wait& wait) const {
    std::vector<const Rank*> missing;
    for (const auto& rank : run_.ranks) {
      const auto* const member = membership_in(rank, wait.member->group);
      if (member == nullptr || &rank == wait.rank) continue;
      const bool is_late = wait.call->is_message() ? member->rank == wait.call->peer
                                                   : member->last_collective() < wait.call->sequence;
      if (is_late) missing.push_back(&rank);
    }
    return missing;
  }

  std::string waiting_text(const Wait& wait) const {
    std::vector<int> ranks;
    for (const auto& other : waits_) {
      const bool same = other.member->group == wait.member->group &&
                        other.call->sequence == wait.call->sequence &&
                        other.call->is_message() == wait.call->is_message();
      if (same && other.has_failed == wait.has_failed) ranks.push_back(other.rank->rank);
    }
    const char* const verb = ranks.size() == 1 ? "has" : "have";
    return wait.has_failed
               ? fmt::format("which {} made {} ago and which failed", list_ranks(ranks),
                             seconds_text(wait.age))
               : fmt::format("for which {} {} waited {}", list_ranks(ranks), verb, seconds_text(wait.age));
  }

  // From a wait to what it waits for, until a rank that waits for nobody, or in a circle.
  std::optional<Verdict> follow(const Wait& first) const {
    if (first.age < patience() && !first.has_failed) return std::nullopt;
    std::vector<const Wait*> path{&first};
    while (true) {
      const auto& wait = *path.back();
      const auto missing = missing_in(wait);
      if (missing.empty()) return std::nullopt;
      for (const auto* rank : missing) {
        if (rank->life == Life::alive && wait_of_rank(*rank) != nullptr) continue;
        const bool saves = rank->life == Life::alive && phase_of(*rank) == Phase::checkpoint;
        if (saves && wait.age < kCheckpointPatience) return std::nullopt;
        return blame(*rank, wait);
      }
      const auto* const next = wait_of_rank(*missing.front());
      if (const auto seen = std::ranges::find(path, next); seen != path.end())
        return deadlock({seen, path.end()});
      path.push_back(next);
    }
  }

  static Verdict deadlock(const std::vector<const Wait*>& circle) {
    Verdict verdict{.cause = Cause::deadlock};
    std::vector<std::string> texts;
    for (const auto* wait : circle) {
      verdict.ranks.push_back(wait->rank->rank);
      texts.push_back(fmt::format("{} has waited {} in {} of group {}", wait->rank->describe(),
                                  seconds_text(wait->age), wait->call->describe(), wait->member->group));
    }
    verdict.text = fmt::format(
        "The ranks wait for each other: {}. Make the calls of several groups, and messages, in one "
        "order on all ranks.",
        fmt::join(texts, ", and "));
    std::ranges::sort(verdict.ranks);
    return verdict;
  }

  // Calls are seen if all ranks of their group, or of its part, are on one host.
  std::vector<int> in_unseen_calls() const {
    std::vector<int> ranks;
    for (const auto& rank : run_.ranks) {
      const bool waits = rank.life == Life::alive && phase_of(rank) == Phase::communication;
      if (waits && phase_age(run_, rank) >= patience()) ranks.push_back(rank.rank);
    }
    return ranks;
  }

  // In a run on several hosts, all of whose ranks are known: the one rank that is in no call while all others
  // wait in calls. Of several such ranks none is named, since the calls may be those of a group without them.
  std::optional<Verdict> find_absent() const {
    if (run_.hosts.size() < 2 || !run_.is_whole()) return std::nullopt;
    const auto waiting = in_unseen_calls();
    if (waiting.empty() || waiting.size() + 1 != run_.ranks.size()) return std::nullopt;
    const auto absent = std::ranges::find_if(
        run_.ranks, [&](const Rank& rank) { return std::ranges::find(waiting, rank.rank) == waiting.end(); });
    const bool saves = phase_of(*absent) == Phase::checkpoint;
    if (!absent->progress || phase_of(*absent) == Phase::communication || saves) return std::nullopt;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const auto& rank : run_.ranks) {
      if (&rank != &*absent) least = std::min(least, phase_age(run_, rank));
    }
    return blame(*absent,
                 fmt::format(" is in no call, and {} {} waited {} in calls over the hosts. It",
                             list_ranks(waiting), waiting.size() == 1 ? "has" : "have", seconds_text(least)),
                 least);
  }

  // " Not seen: the ranks of node4."
  std::string missing_hosts() const {
    std::vector<std::string> names;
    for (const auto& host : run_.hosts) {
      if (!host.problem.empty()) names.push_back(host.name);
    }
    return names.empty() ? "" : fmt::format(" Not seen: the ranks of {}.", fmt::join(names, ", "));
  }

  std::string all_is_well() const {
    const auto unseen = waits_.empty() ? in_unseen_calls() : std::vector<int>{};
    if (!unseen.empty() && run_.hosts.size() > 1) {
      return fmt::format(
          "No rank that is seen is late, but {} {} waited for more than a second in a call over several hosts.{}",
          list_ranks(unseen), unseen.size() == 1 ? "has" : "have", missing_hosts());
    }
    if (!unseen.empty()) {
      return fmt::format(
          "No rank of this host is late, but {} {} waited for more than a second in a call with ranks that are not "
          "seen here: look at the other hosts of the run.",
          list_ranks(unseen), unseen.size() == 1 ? "has" : "have");
    }
    if (waits_.empty()) {
      return fmt::format(
          "No rank of {} waits for another one: all run the program's own code or have left.{}",
          run_.ranks.size(), missing_hosts());
    }
    const auto& wait = waits_.front();
    return fmt::format("No rank is late: the longest wait is that of {} in {} of group {}, {}.{}",
                       wait.rank->describe(), wait.call->describe(), wait.member->group,
                       seconds_text(wait.age), missing_hosts());
  }

  const Run& run_;
  std::vector<Wait> waits_;
};

}  // namespace

std::string name_of(Cause cause) { return kCauses.at(static_cast<std::size_t>(cause)); }

Verdict judge(const Run& run) { return Judge(run).judge(); }

std::string stall_text(const Run& run, const Rank& rank) { return Judge(run).stall_of(rank); }

nlohmann::json to_json(const Verdict& verdict) {
  return {{"cause", name_of(verdict.cause)}, {"ranks", verdict.ranks}, {"text", verdict.text}};
}

}  // namespace lockstep::observe
