// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/engine.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backends/shm/engines.h"
#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/shared_memory.h"
#include "base/throw_error.h"

namespace lockstep::shm {
namespace {

using Clock = std::chrono::steady_clock;
using Cause = GroupFailure::Cause;
using comm::PeerFault;

constexpr auto kFailureLimit = std::chrono::milliseconds(20);
constexpr auto kShortNap = std::chrono::microseconds(200);

bool has_left(const Communicator& communicator, int rank) {
  return communicator.control_block(rank).left.load(std::memory_order_acquire) != 0;
}

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
  Engine& engine;
  const Task& call;
  bool for_slot = false;
  bool polls = false;  // and so does not report a refusal, which may be withdrawn
  Milliseconds timeout{};
  Milliseconds before{};  // waited elsewhere
  Clock::time_point since = Clock::now();
  comm::PeerCheckTimer check = {};

  Milliseconds waited() const {
    return before + std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
  }
  // A rank that has left the group although the call needs it, or -1.
  int gone() const { return missing_for_good(engine.communicator_, call, engine.awaited_by(call)); }

  // What check_peers() asks.
  bool is_refused() const { return !polls && engine.communicator_.is_refused(); }
  int find_dead() const { return engine.communicator_.find_dead(); }
  bool has_left() const { return gone() >= 0; }
  bool is_late() const { return waited() >= timeout; }
  bool is_done() const { return engine.is_ready(*this); }
};

Engine::Engine(Communicator communicator, WaitPolicy wait_policy)
    : communicator_(std::move(communicator)), wait_policy_(wait_policy), mailbox_(communicator_.size()) {
  offer_memory(communicator_);
  Engines::of_process().add(*this);
}

Engine::~Engine() { leave(); }

void Engine::leave(const char* reason) {
  Engines::of_process().remove(*this);
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
  if (!mark_.is_in_child()) communicator_.fail(Cause::aborted, communicator_.rank(), 0);
}

void Engine::start(std::shared_ptr<Collective> call, Milliseconds timeout) {
  Lock lock(*this);
  check();
  while (!has_free_slot()) {
    lock.unlock();
    Wait wait{.engine = *this, .call = *call, .for_slot = true, .timeout = timeout};
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
  if (!mutex_.try_lock()) return;
  const Lock lock(*this, std::adopt_lock);
  advance();
}

bool Engine::test(const Task& call) {
  if (call.finished() || mark_.is_in_child()) return true;
  try_advance();
  if (call.finished() || has_ended()) return true;
  if (!poll_check_.is_due()) return false;
  const Wait poll{.engine = *this, .call = call, .polls = true, .timeout = Milliseconds::max()};
  const auto [fault, rank] = comm::check_peers(poll);
  if (fault == PeerFault::dead) communicator_.fail(Cause::peer_lost, rank, 0);
  if (fault == PeerFault::left) communicator_.fail(Cause::peer_left, poll.gone(), 0);
  return fault != PeerFault::none || call.finished();
}

bool Engine::is_ready(const Wait& wait) {
  const Lock lock(*this);
  if (wait.for_slot) return has_free_slot();
  if (!wait.call.finished()) advance();
  return wait.call.finished();
}

void Engine::wait(const Task& call, Milliseconds timeout, Milliseconds before) {
  if (call.finished()) return;
  mark_.refuse_wait_in_child();
  Wait wait{.engine = *this, .call = call, .timeout = timeout, .before = before};
  wait_until(wait);
}

bool Engine::wait_shortly(const Task& call) {
  if (call.finished()) return true;
  const Wait wait{.engine = *this, .call = call};
  return spin([&] { return is_ready(wait); });
}

void Engine::wait_until(Wait& wait) {
  if (spin([&] { return is_ready(wait); })) return;
  const PhaseScope phase(Phase::communication);  // long waits only: a spin costs no clock
  while (!yield_until_ready(wait)) {
    nap(wait);
    if (is_ready(wait)) return;
    check_peers(wait);
    if (spin([&] { return is_ready(wait); })) return;
  }
}

// Checks meanwhile: if other processes keep the cores busy, each yield may take a time slice.
bool Engine::yield_until_ready(Wait& wait) {
  for (int i = 0; i < wait_policy_.yields; ++i) {
    if (is_ready(wait)) return true;
    check_peers(wait);
    std::this_thread::yield();
  }
  return false;
}

void Engine::nap(const Wait& wait) {
  auto& block = communicator_.own();
  const auto limit = Engines::of_process().advance_others(*this) ? kShortNap : wait_policy_.nap;
  const auto bell = block.bell.load(std::memory_order_acquire);
  block.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Counterpart of Communicator::ring(): finds what was published before the sleeper was visible.
  if (!is_ready(wait) && communicator_.failure() == nullptr) futex_wait(block.bell, bell, limit);
  block.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

bool Engine::has_ended() const { return communicator_.failure() != nullptr || closed_ != nullptr; }

// Throws if the wait can no longer succeed.
void Engine::check_peers(Wait& wait) {
  if (!has_ended() && !wait.is_late() && !wait.check.is_due()) return;
  check_wait();
  if (const auto* reason = closed_.load(); reason != nullptr && !wait.call.finished()) throw Error(reason);
  if (const auto* failure = communicator_.failure()) {
    if (!is_ready(wait)) throw_failure(*failure, &wait);
    return;
  }
  const auto [fault, rank] = comm::check_peers(wait);
  switch (fault) {
    case PeerFault::refused:
      throw DesyncError("another rank refuses the call");
    case PeerFault::dead:
      fail(wait, Cause::peer_lost, rank);
    case PeerFault::left:
      fail(wait, Cause::peer_left, wait.gone());
    case PeerFault::late: {
      const auto awaited = awaited_by(wait.call);
      fail(wait, Cause::timeout, awaited.empty() ? -1 : awaited.front());
    }
    case PeerFault::none:
      break;
  }
}

void Engine::fail(const Wait& wait, Cause cause, int culprit) {
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
  const MutexLock lock(mutex_);
  return call.awaited();
}

void Engine::check() const {
  if (const auto* reason = closed_.load()) throw Error(reason);
  if (const auto* failure = communicator_.failure()) throw_failure(*failure, nullptr);
}

void Engine::throw_failure(const GroupFailure& failure, const Wait* wait) const {
  const auto culprit = failure.culprit >= 0 ? communicator_.name_of(failure.culprit) : std::string("a rank");
  const auto reporter =
      failure.reporter >= 0 ? communicator_.name_of(failure.reporter) : std::string("a rank");
  const auto about =
      communicator_.details_of(failure.culprit >= 0 ? std::vector{failure.culprit} : std::vector<int>());
  switch (failure.cause) {
    case Cause::peer_lost:
      throw PeerLost(culprit + " died", about);
    case Cause::peer_left:
      throw PeerLost(culprit + " has left the group", about);
    case Cause::timeout: {
      const auto awaited = wait != nullptr ? awaited_by(wait->call) : std::vector<int>{};
      if (awaited.empty()) throw_error<TimeoutError>(about, "{} gave up waiting for {}", reporter, culprit);
      throw_error<TimeoutError>(communicator_.details_of(awaited), "after a timeout of {} ms {} {} not there",
                                wait->waited().count(), names_of(communicator_, awaited),
                                awaited.size() == 1 ? "was" : "were");
    }
    case Cause::disagreement:
      throw_error<DesyncError>(
          communicator_.details_of(Collective::ranks_that_differ(communicator_, failure.call)),
          "the ranks make different calls: {}",
          Collective::describe_descriptors(communicator_, failure.call));
    case Cause::message_mismatch:
      throw_error<DesyncError>(
          about, "{} received from {} a message whose size or element type differs from its tensor's",
          reporter, culprit);
    case Cause::memory_refused:
      throw_error<Error>(about, "the system refuses {} to read the memory of {}, which it allowed before",
                         reporter, culprit);
    case Cause::aborted:
      throw Error(reporter + " aborted the group");
    case Cause::none:
      break;
  }
  throw Error("the group has failed");
}

}  // namespace lockstep::shm
