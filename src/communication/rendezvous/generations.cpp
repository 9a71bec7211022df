// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/generations.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestMeetingSleep{100};
constexpr milliseconds kLogMeetingAfter{5'000};

// Whether it was less.
bool raise_to(std::atomic<std::uint64_t>& number, std::uint64_t least) {
  auto before = number.load();
  while (before < least)
    if (number.compare_exchange_weak(before, least)) return true;
  return false;
}

}  // namespace

std::string Generations::key(std::uint64_t generation, int rank) const {
  return fmt::format("generation/{}/{}", generation, rank);
}

void Generations::propose_after(std::uint64_t generation) const {
  auto& state = memory_->state();
  if (raise_to(state.proposed, generation + 1)) state.note_change();
}

void Generations::enter(std::uint64_t generation) {
  raise_to(memory_->state().formed, generation);
  current_ = generation;
}

std::vector<int> Generations::missing(std::uint64_t generation, const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int rank : members)
    if (!store_->check({key(generation, rank)})) ranks.push_back(rank);
  return ranks;
}

Generations::Members Generations::meet(const std::string& handle, milliseconds timeout) const {
  const PhaseScope phase(Phase::communication);
  const Reporter by{rank_, memory_->world_size()};
  const Deadline deadline(timeout);
  Deadline log_waiting(kLogMeetingAfter);
  bool is_logged = false;
  const auto& changes = memory_->state().changes;
  for (std::uint64_t announced = 0;;) {
    const auto seen = changes.load(std::memory_order_acquire);
    const auto generation = proposed();
    if (announced != generation) store_->set(key(generation, rank_), handle);
    announced = generation;
    const auto remaining = memory_->remaining();
    const auto absent = missing(generation, remaining);
    if (absent.empty()) {
      Members members{.generation = generation, .handles = {}};
      for (const int rank : remaining) members.handles.push_back(store_->get_to_str(key(generation, rank)));
      return members;
    }
    if (memory_->state().phase.load() == RunPhase::finished) {
      throw_error<Error>(
          by,
          "a rank was lost when all ranks had done their work in elastic::run(), so the group is not formed again");
    }
    if (deadline.expired()) {
      throw_error<RendezvousError>(
          by, ErrorDetails{.ranks = absent},
          "a rank was lost, and after {} ms rank{} {}{} {} not come to form the group again: {}a rank does not notice the "
          "loss because it makes no call, or is frozen",
          timeout.count(), absent.size() == 1 ? "" : "s", fmt::join(absent, ", "),
          // The group has fewer ranks by now, and others of these numbers.
          memory_->can_shrink() ? fmt::format(" (of the {} that were started)", memory_->world_size()) : "",
          absent.size() == 1 ? "has" : "have",
          memory_->can_shrink() ? "" : "a replacement has not reached elastic::run(), or ");
    }
    if (log_waiting.expired() && !std::exchange(is_logged, true)) {
      log(LogLevel::info, fmt::format("still waiting for rank{} {} to form the group again",
                                      absent.size() == 1 ? "" : "s", fmt::join(absent, ", ")));
    }
    futex_wait(changes, seen, std::min(deadline.remaining(), kLongestMeetingSleep));
  }
}

}  // namespace lockstep::rendezvous
