// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/generations.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestMeetingSleep{100};
constexpr milliseconds kLogMeetingAfter{5'000};
// Between two questions to a store on another host, for a proposal or an end while a rank waits for the keys of others.
constexpr milliseconds kFirstStorePause{5};
constexpr milliseconds kLongestStorePause{100};
// Keys of a store that all hosts share. A phase is its number.
constexpr const char* kProposedKey = "generation/proposed";
constexpr const char* kPhaseKey = "phase";

std::string text_of(RunPhase phase) { return std::to_string(static_cast<std::uint32_t>(phase)); }

// Never back: another rank of this host may have moved it on.
void move_on(std::atomic<RunPhase>& phase, RunPhase next) {
  auto now = phase.load();
  while (now < std::min(next, RunPhase::finished))
    if (phase.compare_exchange_weak(now, next)) return;
}

// Whether it was less.
bool raise_to(std::atomic<std::uint64_t>& number, std::uint64_t least) {
  auto before = number.load();
  while (before < least)
    if (number.compare_exchange_weak(before, least)) return true;
  return false;
}

}  // namespace

Generations::Generations(std::shared_ptr<const RunMemory> memory, c10::intrusive_ptr<c10d::Store> store,
                         int rank, bool is_replacement)
    : memory_(std::move(memory)),
      store_(std::move(store)),
      rank_(rank),
      current_(memory_->state().formed.load()) {
  if (is_replacement && memory_->has_several_hosts()) current_ = proposed();
}

std::string Generations::key(std::uint64_t generation, int rank) const {
  return fmt::format("generation/{}/{}", generation, rank);
}

RunPhase Generations::phase() const {
  auto& local = memory_->state().phase;
  if (memory_->has_several_hosts() && store_->check({kPhaseKey})) {
    if (const auto number = parse_number<std::uint32_t>(store_->get_to_str(kPhaseKey)))
      move_on(local, static_cast<RunPhase>(*number));
  }
  return local;
}

// The store's first: a rank of this host that reads it in between would raise the copy back. The launcher of this host looks
// at its copy, even if the store is lost.
void Generations::set_phase(RunPhase phase) const {
  const auto copy = c10::make_scope_exit([&] { memory_->state().phase = phase; });
  if (memory_->has_several_hosts()) store_->set(kPhaseKey, text_of(phase));
}

void Generations::begin_running() const {
  if (memory_->has_several_hosts()) store_->compareSet(kPhaseKey, "", text_of(RunPhase::running));
  auto starting = RunPhase::starting;
  memory_->state().phase.compare_exchange_strong(starting, RunPhase::running);
}

std::uint64_t Generations::proposed() const {
  if (!memory_->has_several_hosts()) return memory_->state().proposed.load(std::memory_order_acquire);
  return static_cast<std::uint64_t>(store_->add(kProposedKey, 0));
}

void Generations::wait_for(const std::vector<std::string>& keys, milliseconds limit) const {
  try {
    store_->wait(keys, limit);
  } catch (const c10::DistStoreError&) {
    // Not all are there yet.
  }
}

void Generations::propose_after(std::uint64_t generation) const {
  if (memory_->has_several_hosts()) {
    for (auto now = proposed(); now <= generation; now = proposed())
      store_->compareSet(kProposedKey, std::to_string(now), std::to_string(generation + 1));
    return;
  }
  auto& state = memory_->state();
  if (raise_to(state.proposed, generation + 1)) state.note_change();
}

void Generations::enter(std::uint64_t generation) {
  raise_to(memory_->state().formed, generation);
  current_ = generation;
}

std::vector<std::string> Generations::keys(std::uint64_t generation, const std::vector<int>& members) const {
  std::vector<std::string> keys;
  for (const int rank : members) keys.push_back(key(generation, rank));
  return keys;
}

std::vector<int> Generations::missing(std::uint64_t generation, const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int rank : members)
    if (!store_->check({key(generation, rank)})) ranks.push_back(rank);
  return ranks;
}

Generations::Members Generations::meet(const std::string& handle, milliseconds timeout) const {
  const PhaseScope waiting(Phase::communication);
  const Reporter by{rank_, memory_->world_size()};
  const Deadline deadline(timeout);
  Deadline log_waiting(kLogMeetingAfter);
  bool is_logged = false;
  const auto& changes = memory_->state().changes;
  auto pause = kFirstStorePause;
  for (std::uint64_t announced = 0;;) {
    const auto seen = changes.load(std::memory_order_acquire);
    const auto generation = proposed();
    if (announced != generation) {
      store_->set(key(generation, rank_), handle);
      pause = kFirstStorePause;
    }
    announced = generation;
    const auto remaining = memory_->remaining();
    const auto expected = keys(generation, remaining);
    if (store_->check(expected)) {
      Members members{.generation = generation, .handles = {}};
      for (const auto& value : store_->multiGet(expected))
        members.handles.emplace_back(value.begin(), value.end());
      return members;
    }
    if (phase() == RunPhase::finished) {
      throw_error<Error>(
          by,
          "a rank was lost when all ranks had done their work in elastic::run(), so the group is not formed again");
    }
    if (deadline.expired()) {
      const auto absent = missing(generation, remaining);
      if (absent.empty()) continue;  // the last one has come meanwhile
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
      const auto absent = missing(generation, remaining);
      log(LogLevel::info, fmt::format("still waiting for rank{} {} to form the group again",
                                      absent.size() == 1 ? "" : "s", fmt::join(absent, ", ")));
    }
    if (memory_->has_several_hosts()) {
      wait_for(expected, std::clamp(deadline.remaining(), milliseconds(1), pause));  // 0: no limit
      pause = std::min(2 * pause, kLongestStorePause);
    } else {
      futex_wait(changes, seen, std::min(deadline.remaining(), kLongestMeetingSleep));
    }
  }
}

}  // namespace lockstep::rendezvous
