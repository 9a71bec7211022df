// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/engine.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "backends/shm/peer_memory.h"
#include "base/deadline.h"
#include "base/futex.h"
#include "base/throw_error.h"
#include "base/wait_check.h"
#include "comm/missing_ranks.h"

namespace lockstep::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFailureLimit = std::chrono::milliseconds(20);
constexpr auto kShortNap = std::chrono::microseconds(200);

bool has_left(const Communicator& communicator, int rank) {
  return communicator.control_block(rank).left.load(std::memory_order_acquire) != 0;
}

// A rank that has left the group although the call needs it, or -1.
int missing_for_good(const Communicator& communicator, const Task& call, const std::vector<int>& awaited) {
  const auto* transfer = dynamic_cast<const Transfer*>(&call);
  const auto left = [&](int rank) { return has_left(communicator, rank); };
  const bool hopeless = transfer != nullptr && transfer->any_will_do() ? std::ranges::all_of(awaited, left)
                                                                       : std::ranges::any_of(awaited, left);
  return hopeless && !awaited.empty() ? *std::ranges::find_if(awaited, left) : -1;
}

std::string names_of(const Communicator& communicator, const std::vector<int>& ranks) {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int rank : ranks) names.push_back(communicator.name_of(rank));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

// One thread's wait for a call to finish, or for a free slot.
struct Engine::Wait {
  const Task& call;
  bool for_slot = false;
  Milliseconds timeout{};
  Milliseconds before{};  // waited elsewhere
  Clock::time_point since = Clock::now();

  Milliseconds waited() const {
    return before + std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
  }
};

Engine::Engine(Communicator communicator, WaitPolicy wait_policy)
    : communicator_(std::move(communicator)), wait_policy_(wait_policy), mailbox_(communicator_.size()) {
  offer_memory(communicator_);
  add_engine(*this);
}

Engine::~Engine() { leave(); }

void Engine::leave(const char* reason) {
  remove_engine(*this);
  if (mark_.is_in_child()) return;
  const Lock lock(*this);
  if (closed_ != nullptr) return;
  closed_ = reason;
  // First, because the memory of dropped calls may be used for something else.
  communicator_.own().left.store(1, std::memory_order_release);
  ended_.insert(ended_.end(), collectives_.begin(), collectives_.end());
  ended_.insert(ended_.end(), transfers_.begin(), transfers_.end());
  collectives_.clear();
  transfers_.clear();
  under_way_ = 0;
  communicator_.ring();
}

void Engine::abort() const {
  if (!mark_.is_in_child()) communicator_.fail(GroupFailure::Cause::aborted, communicator_.rank(), 0);
}

void Engine::start(std::shared_ptr<Collective> call, Milliseconds timeout) {
  Lock lock(*this);
  check();
  while (!has_free_slot()) {
    lock.unlock();
    Wait wait{.call = *call, .for_slot = true, .timeout = timeout};
    wait_until(wait);
    lock.lock();
  }
  call->post(++number_, pipeline_chunks_);
  collectives_.push_back(std::move(call));
  under_way_.fetch_add(1, std::memory_order_relaxed);
  advance();
}

// False if it must wait for earlier sends; then nothing has been done.
bool Engine::post_eager() {
  if (!collectives_.empty() || !transfers_.empty() || !has_free_slot()) return false;
  arrival_.post(eager_, ++number_);
  return true;
}

// Rings for the descriptor in any case.
bool Engine::finish_eager_soon() {
  if (arrival_.poll() == Arrival::Seen::all && finish_eager()) {
    communicator_.ring();
    return true;
  }
  communicator_.ring();
  if (poll_for_a_while() != Arrival::Seen::all || !finish_eager()) return false;
  communicator_.ring_softly();
  return true;
}

// False if another rank has more data than fits beside its descriptor.
bool Engine::finish_eager() {
  if (!arrival_.is_small()) return false;
  arrival_.finish_small();
  communicator_.own().completed.value.store(number_, std::memory_order_release);
  arrival_.prefetch_next();
  return true;
}

Arrival::Seen Engine::poll_for_a_while() {
  auto seen = arrival_.poll();
  for (int tries = 0; seen == Arrival::Seen::not_all && tries < wait_policy_.tries; ++tries)
    seen = arrival_.poll();
  if (seen != Arrival::Seen::not_all || wait_policy_.spin.count() == 0) return seen;
  const auto begin = Clock::now();
  while (seen == Arrival::Seen::not_all && Clock::now() - begin < wait_policy_.spin) {
    for (int i = 0; seen == Arrival::Seen::not_all && i < wait_policy_.tries; ++i) {
      seen = arrival_.poll();
      relax();
    }
  }
  return seen;
}

void Engine::start(std::shared_ptr<Transfer> call) {
  transfers_.push_back(std::move(call));
  under_way_.fetch_add(1, std::memory_order_relaxed);
  advance();
}

bool Engine::send_at_once(int to, std::int64_t tag, Element element, Source source,
                          std::uint64_t log_number) {
  if (source.bytes > kMessageChunkBytes) return false;
  check();
  const Lock lock(*this);
  Send call(communicator_, mailbox_, to, tag, element, source, log_number);
  const bool sent = call.advance();
  if (!sent) call.give_up();
  if (!is_idle()) advance();
  return sent;
}

bool Engine::try_receive(Receive& call) {
  const Lock lock(*this);
  unmatched_.clear();
  if (!is_idle()) advance();
  return call.advance_behind(unmatched_);
}

bool Engine::has_free_slot() {
  const auto next = number_ + 1;
  if (next <= completed_by_all_ + kSlots) return true;
  advance();
  completed_by_all_ = number_;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    completed_by_all_ = std::min(
        completed_by_all_, communicator_.control_block(rank).completed.value.load(std::memory_order_acquire));
  }
  return next <= completed_by_all_ + kSlots;
}

void Engine::advance() {
  while (!collectives_.empty() && collectives_.front()->advance()) {
    collectives_.front()->set_finished();
    ended_.push_back(std::move(collectives_.front()));
    collectives_.pop_front();
    under_way_.fetch_sub(1, std::memory_order_relaxed);
  }
  advance_transfers();
}

// A message that arrives during the pass over the receives is for the first one that requests it, which the
// pass may have left behind.
void Engine::advance_transfers() {
  unmatched_.clear();
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    auto* receive = (*it)->unmatched();
    if (receive == nullptr ? (*it)->advance() : receive->advance_behind(unmatched_)) {
      (*it)->set_finished();
      ended_.push_back(std::move(*it));
      it = transfers_.erase(it);
      under_way_.fetch_sub(1, std::memory_order_relaxed);
      continue;
    }
    if ((*it)->unmatched() != nullptr) unmatched_.push_back(receive->wanted());
    ++it;
  }
}

void Engine::try_advance() {
  const Lock lock(*this, std::try_to_lock);
  if (lock.owns_lock()) advance();
}

bool Engine::test(const Task& call) {
  if (call.finished() || mark_.is_in_child()) return true;
  if (is_look_due()) {
    look_for_lost(call);
  } else {
    try_advance();
  }
  return call.finished() || communicator_.failure() != nullptr || closed_ != nullptr;
}

// As look_around(), for callers that poll and never wait.
void Engine::look_for_lost(const Task& call) {
  const auto find_gone = [&] { return missing_for_good(communicator_, call, awaited_by(call)); };
  const int dead = communicator_.find_dead();
  int gone = find_gone();
  {
    const Lock lock(*this);
    advance();
  }
  if (call.finished()) return;
  if (dead >= 0) communicator_.fail(GroupFailure::Cause::peer_lost, dead, 0);
  if (gone >= 0) gone = find_gone();
  if (gone >= 0) communicator_.fail(GroupFailure::Cause::peer_left, gone, 0);
}

// True once every nap.
bool Engine::is_look_due() {
  const auto now = Clock::now().time_since_epoch().count();
  auto next = next_look_.load(std::memory_order_relaxed);
  const auto pause = std::chrono::duration_cast<Clock::duration>(wait_policy_.nap).count();
  return now >= next && next_look_.compare_exchange_strong(next, now + pause);
}

bool Engine::is_ready(Wait& wait) {
  const Lock lock(*this);
  if (wait.for_slot) return has_free_slot();
  if (!wait.call.finished()) advance();
  return wait.call.finished();
}

void Engine::wait(const Task& call, Milliseconds timeout, Milliseconds before) {
  if (call.finished()) return;
  mark_.refuse_wait_in_child();
  Wait wait{.call = call, .timeout = timeout, .before = before};
  wait_until(wait);
}

bool Engine::wait_shortly(const Task& call) {
  if (call.finished()) return true;
  Wait wait{.call = call};
  return spin([&] { return is_ready(wait); });
}

// Looks around once a nap, not whenever a bell ends one early.
void Engine::wait_until(Wait& wait) {
  auto next_look = Clock::now() + wait_policy_.nap;
  while (true) {
    if (spin([&] { return is_ready(wait); }) || yield_until_ready(wait)) return;
    nap(wait);
    if (is_ready(wait)) return;
    if (communicator_.failure() == nullptr && closed_ == nullptr && Clock::now() < next_look) continue;
    look_around(wait);
    next_look = Clock::now() + wait_policy_.nap;
  }
}

// Checks as often as with naps: if other processes keep the cores busy, each yield may take a time slice.
bool Engine::yield_until_ready(Wait& wait) {
  auto next_look = Clock::now() + wait_policy_.nap;
  for (int i = 0; i < wait_policy_.yields; ++i) {
    if (is_ready(wait)) return true;
    if (communicator_.failure() != nullptr || Clock::now() >= next_look) {
      look_around(wait);
      next_look = Clock::now() + wait_policy_.nap;
    }
    std::this_thread::yield();
  }
  return false;
}

void Engine::nap(Wait& wait) {
  auto& block = communicator_.own();
  const auto limit = advance_others(*this) ? kShortNap : wait_policy_.nap;
  const auto bell = block.bell.load(std::memory_order_acquire);
  block.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Counterpart of Communicator::ring(): finds what was published before the sleeper was visible.
  if (!is_ready(wait) && communicator_.failure() == nullptr) futex_wait(block.bell, bell, limit);
  block.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

// Throws if the wait can no longer succeed, in the order of Note [Dead, refused or late?]. Checks data that a
// rank published before its death before it reports the loss.
void Engine::look_around(Wait& wait) {
  check_wait();
  if (const auto* reason = closed_.load(); reason != nullptr && !wait.call.finished()) throw Error(reason);
  if (const auto* failure = communicator_.failure()) {
    if (!is_ready(wait)) throw_failure(*failure, &wait);
    return;
  }
  if (communicator_.is_refused() && !is_ready(wait)) throw DesyncError("another rank refuses the call");
  const int dead = communicator_.find_dead();
  int gone = missing_for_good(communicator_, wait.call, awaited_by(wait.call));
  const bool late = wait.waited() >= wait.timeout;
  if ((dead < 0 && gone < 0 && !late) || is_ready(wait)) return;
  if (dead >= 0) fail(wait, GroupFailure::Cause::peer_lost, dead);
  gone = missing_for_good(communicator_, wait.call, awaited_by(wait.call));
  if (gone >= 0) {
    fail(wait, GroupFailure::Cause::peer_left, gone);
  } else if (late) {
    const auto awaited = awaited_by(wait.call);
    fail(wait, GroupFailure::Cause::timeout, awaited.empty() ? -1 : awaited.front());
  }
}

void Engine::fail(const Wait& wait, GroupFailure::Cause cause, int culprit) {
  communicator_.fail(cause, culprit, 0);
  // Another rank may be writing its failure, unless it died while writing.
  const Deadline deadline(kFailureLimit);
  while (communicator_.failure() == nullptr && !deadline.expired()) std::this_thread::yield();
  GroupFailure own;
  own.cause = cause;
  own.reporter = communicator_.rank();
  own.culprit = culprit;
  const auto* failure = communicator_.failure();
  throw_failure(failure != nullptr ? *failure : own, &wait);
}

// Another thread may be advancing the call.
std::vector<int> Engine::awaited_by(const Task& call) const {
  const std::lock_guard lock(mutex_);
  return call.awaited();
}

void Engine::check() const {
  if (const auto* reason = closed_.load()) throw Error(reason);
  if (const auto* failure = communicator_.failure()) throw_failure(*failure, nullptr);
}

void Engine::throw_failure(const GroupFailure& failure, const Wait* wait) const {
  using Cause = GroupFailure::Cause;
  const auto culprit = failure.culprit >= 0 ? communicator_.name_of(failure.culprit) : std::string("a rank");
  const auto reporter =
      failure.reporter >= 0 ? communicator_.name_of(failure.reporter) : std::string("a rank");
  switch (failure.cause) {
    case Cause::peer_lost:
      throw PeerLost(culprit + " died");
    case Cause::peer_left:
      throw PeerLost(culprit + " has left the group");
    case Cause::timeout: {
      const auto awaited = wait != nullptr ? awaited_by(wait->call) : std::vector<int>{};
      if (awaited.empty()) throw_error<TimeoutError>("{} gave up waiting for {}", reporter, culprit);
      throw comm::MissingRanks(
          fmt::format("after a timeout of {} ms {} {} not there", wait->waited().count(),
                      names_of(communicator_, awaited), awaited.size() == 1 ? "was" : "were"),
          awaited);
    }
    case Cause::disagreement:
      throw DesyncError("the ranks make different calls: " +
                        Collective::describe_descriptors(communicator_, failure.call));
    case Cause::message_mismatch:
      throw_error<DesyncError>(
          "{} received from {} a message whose size or element type differs from its tensor's", reporter,
          culprit);
    case Cause::memory_refused:
      throw_error<Error>("the system refuses {} to read the memory of {}, which it allowed before", reporter,
                         culprit);
    case Cause::aborted:
      throw Error(reporter + " aborted the group");
    case Cause::none:
      break;
  }
  throw Error("the group has failed");
}

}  // namespace lockstep::shm
