// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/shm/collective.h"
#include "backends/shm/meeting.h"
#include "backends/shm/patience.h"
#include "backends/shm/team.h"
#include "backends/shm/transfer.h"

namespace lockstep::shm {

// Moves the calls of one rank in one group forward. There is no thread behind it: whoever starts or waits for
// a call moves all that are under way, and a wait also those of this process's other groups. Safe from any
// thread.
class Engine {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Engine(Team team, Patience patience);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Team& team() const { return team_; }
  Mailbox& mailbox() { return mailbox_; }
  std::mutex& mutex() { return mutex_; }

  // Publishes the call; all ranks do so in the same order. Waits, at most `timeout`, while kSlots calls are
  // under way already. Throws as wait() does when the group has failed.
  void start(std::shared_ptr<Collective> call, Milliseconds timeout);
  // The call was made under mutex(), which is held still.
  void start(std::shared_ptr<Transfer> call);
  // For as long as a wait spins; whether the call is finished.
  bool wait_shortly(const Call& call);

  // Messages of one chunk: done at once, or for a receive while a wait spins, or not begun. `posted()` is
  // called before it waits. Both throw when the group has failed.
  bool send_at_once(int to, std::int64_t tag, Element element, Source source, std::uint64_t log_number);
  template <class Posted>
  bool receive_soon(Receive& call, const Posted& posted);

  // Does a small call from beginning to end, where no other is under way and all ranks come to it soon: then
  // returns nullptr. Otherwise it has been started as the call that `make(request)` returns. `fill(request)`
  // says what is asked for; the request may hold what an earlier one left. `posted()` is called once the call
  // is published, or before that takes long. Throws as start() does.
  template <class Fill, class Posted, class Make>
  std::shared_ptr<Collective> start_brief(const Fill& fill, const Posted& posted, const Make& make,
                                          Milliseconds timeout);

  // Until the call is finished. Throws TimeoutError, PeerLost, DesyncError or Error when it cannot be.
  void wait(const Call& call, Milliseconds timeout);
  // Moves everything forward; whether wait() would return or throw at once.
  bool test(const Call& call);

  // Does what can be done at once, unless another thread is at it.
  void try_advance();
  bool is_idle() const { return under_way_.load(std::memory_order_relaxed) == 0; }

  // Tells the others that this rank has left, and drops what is under way; waiting for it throws.
  void leave();
  // Ends all calls, on every rank, with an error.
  void abort() const { team_.fail(Verdict::Cause::aborted, team_.rank(), 0); }
  // Throws when the group has failed.
  void check() const;

 private:
  struct Wait;

  bool post_brief();
  bool finish_brief_soon();
  Meeting::Seen look_for_a_while();
  bool finish_brief();
  template <class Make>
  std::shared_ptr<Collective> take_over(const Make& make);
  void wait_until(Wait& wait);
  bool yield_until_ready(Wait& wait);
  template <class Ready>
  bool spin(const Ready& ready) const;
  bool try_receive(Receive& call);
  bool is_ready(Wait& wait);
  void nap(Wait& wait);
  void look_around(Wait& wait);
  [[noreturn]] void fail(const Wait& wait, Verdict::Cause cause, int culprit);
  void advance();
  void advance_transfers();
  bool has_free_slot();
  std::vector<int> awaited_by(const Call& call) const;
  [[noreturn]] void throw_verdict(const Verdict& verdict, const Wait* wait) const;

  Team team_;
  Patience patience_;
  mutable std::mutex mutex_;
  Mailbox mailbox_;
  std::deque<std::shared_ptr<Collective>> collectives_;
  std::list<std::shared_ptr<Transfer>> transfers_;
  std::vector<Wanted> unmatched_;  // by receives under way, as they were last gone through
  std::atomic<int> under_way_{0};
  std::atomic<bool> closed_{false};
  std::uint64_t number_ = 0;
  std::uint64_t pipeline_chunks_ = 0;
  std::uint64_t completed_by_all_ = 0;
  Request brief_;  // the small call that is being made, and how it goes
  Meeting meeting_{team_};
};

template <class Fill, class Posted, class Make>
std::shared_ptr<Collective> Engine::start_brief(const Fill& fill, const Posted& posted, const Make& make,
                                                Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  check();
  fill(brief_);
  const bool is_posted = post_brief();
  posted();
  if (is_posted && finish_brief_soon()) return nullptr;
  if (is_posted) return take_over(make);
  std::shared_ptr<Collective> call = make(Request(brief_));
  lock.unlock();
  start(call, timeout);
  return call;
}

template <class Posted>
bool Engine::receive_soon(Receive& call, const Posted& posted) {
  check();
  if (try_receive(call)) return true;
  posted();
  return spin([&] { return try_receive(call); });
}

template <class Ready>
bool Engine::spin(const Ready& ready) const {
  for (int tries = 0; tries < patience_.tries; ++tries) {
    if (ready()) return true;
    relax();
  }
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < patience_.spin) {
    if (ready()) return true;
    relax();
  }
  return false;
}

// The small call has been posted already: the others count on it.
template <class Make>
std::shared_ptr<Collective> Engine::take_over(const Make& make) {
  try {
    std::shared_ptr<Collective> call = make(Request(brief_));
    call->resume(number_, pipeline_chunks_);
    collectives_.push_back(call);
    under_way_.fetch_add(1, std::memory_order_relaxed);
    return call;
  } catch (...) {
    abort();
    throw;
  }
}

}  // namespace lockstep::shm
