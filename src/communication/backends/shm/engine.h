// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include <lockstep/base/mutex.h>

#include "backends/shm/arrival.h"
#include "backends/shm/collective.h"
#include "backends/shm/communicator.h"
#include "backends/shm/transfer.h"
#include "base/process_state.h"
#include "comm/peer_check.h"

namespace lockstep::shm {

// How a rank waits: it spins, then yields, then sleeps until it is woken or its nap ends and it checks that
// all ranks are alive.
struct WaitPolicy {
  int tries = 64;  // before the clock is read
  std::chrono::microseconds spin{100};
  int yields = 0;  // counted, not timed: on a busy machine one may take a whole time slice
  std::chrono::microseconds nap{5'000};

  // For ranks that each have their own core, or that share cores.
  static WaitPolicy for_cores(int ranks, int cores) {
    if (ranks <= cores) return {};
    return {.tries = 2, .spin = std::chrono::microseconds(0), .yields = 200};
  }

  // For ranks that each have a thread of a network beside them, which gets the core at once.
  static WaitPolicy beside_network(int ranks, int cores) {
    if (2 * ranks <= cores) return {};
    return {.tries = 2, .spin = std::chrono::microseconds(0)};
  }
};

// Marks a wait loop for the core.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Advances the calls of one rank in one group. It has no thread: each thread that starts or waits for a call
// advances all calls in progress, and a wait also those of this process's other groups. Safe from any thread.
class Engine {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Engine(Communicator communicator, WaitPolicy wait_policy);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Communicator& communicator() const { return communicator_; }
  // Used under a Lock only; its address is not.
  Mailbox& mailbox() { return mailbox_; }

  // The mutex. What ends meanwhile is dropped after it is released: it may have the last reference to a
  // tensor of Python, which is freed under Python's lock, and whoever has that lock may wait for the mutex.
  class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) Lock {
   public:
    explicit Lock(Engine& engine) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(engine.mutex_))
        : engine_(engine) {
      lock();
    }
    // After try_lock().
    Lock(Engine& engine, std::adopt_lock_t /*held*/) LOCKSTEP_REQUIRES(engine.mutex_)
        : engine_(engine), is_held_(true) {}
    ~Lock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
      if (is_held_) unlock();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    // Clang knows that these two lock and unlock, but not here that it is the engine's mutex.
    void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
      engine_.mutex_.lock();
      is_held_ = true;
    }
    void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
      const auto ended = std::exchange(engine_.ended_, {});
      is_held_ = false;
      engine_.mutex_.unlock();
    }

   private:
    Engine& engine_;
    bool is_held_ = false;
  };

  // Publishes the call; all ranks do so in the same order. Waits, at most `timeout`, while kSlots calls are
  // in progress. Throws like wait() if the group has failed.
  void start(std::shared_ptr<Collective> call, Milliseconds timeout);
  // The call was created under the same Lock.
  void start(std::shared_ptr<Transfer> call) LOCKSTEP_REQUIRES(mutex_);
  // Waits only while a wait spins. Returns whether the call is finished.
  bool wait_shortly(const Task& call);

  // Messages of one chunk: complete them immediately (a receive also while a wait spins), or do not start
  // them. `posted()` is called before a wait. Both throw if the group has failed.
  bool send_at_once(int to, std::int64_t tag, Element element, Source source, std::uint64_t log_number);
  template <class Posted>
  bool receive_soon(Receive& call, const Posted& posted);

  // The eager path: completes a small call immediately and returns nullptr, if no other call is in progress
  // and all ranks arrive soon. Otherwise starts the call as the Collective that `make(request)` returns.
  // `fill(request)` overwrites the request of an earlier call. `posted(bool)` is called after the call is
  // published (true), or before start() may wait (false). Throws like start().
  template <class Fill, class Make, class Posted>
  auto start_eager(const Fill& fill, const Make& make, const Posted& posted, Milliseconds timeout)
      -> decltype(make(Request()));

  // Waits until the call is finished. Throws TimeoutError, PeerLost, DesyncError or Error if it fails, and
  // Error in a forked child of the rank.
  // `before`: the time that was waited elsewhere, for the message of a timeout.
  void wait(const Task& call, Milliseconds timeout, Milliseconds before = {});
  // Advances all calls. Returns whether wait() would return or throw without blocking.
  bool test(const Task& call);

  // Advances all calls without waiting, unless another thread is doing so.
  void try_advance();
  bool is_idle() const { return under_way_.load(std::memory_order_relaxed) == 0; }

  // Publishes that this rank has left, and drops the calls in progress; waiting for them throws `reason`,
  // which stays valid.
  void leave(const char* reason = "the group has been closed");
  // Ends all calls, on every rank, with an error. Nothing in a forked child.
  void abort() const;
  // Throws when the group has failed.
  void check() const;

 private:
  struct Wait;

  bool post_eager() LOCKSTEP_REQUIRES(mutex_);
  bool finish_eager_soon() LOCKSTEP_REQUIRES(mutex_);
  Arrival::Seen poll_for_a_while() LOCKSTEP_REQUIRES(mutex_);
  bool finish_eager() LOCKSTEP_REQUIRES(mutex_);
  template <class Make>
  std::invoke_result_t<const Make&, Request> take_over(const Make& make) LOCKSTEP_REQUIRES(mutex_);
  void wait_until(Wait& wait);
  bool yield_until_ready(Wait& wait);
  template <class Ready>
  bool spin(const Ready& ready) const;
  bool try_receive(Receive& call);
  bool is_ready(const Wait& wait);
  void nap(const Wait& wait);
  bool has_ended() const;
  void check_peers(Wait& wait);
  [[noreturn]] void fail(const Wait& wait, GroupFailure::Cause cause, int culprit);
  void advance() LOCKSTEP_REQUIRES(mutex_);
  void advance_transfers() LOCKSTEP_REQUIRES(mutex_);
  bool has_free_slot() LOCKSTEP_REQUIRES(mutex_);
  std::vector<int> awaited_by(const Task& call) const;
  [[noreturn]] void throw_failure(const GroupFailure& failure, const Wait* wait) const;

  Communicator communicator_;
  WaitPolicy wait_policy_;
  ForkMark mark_;
  mutable Mutex mutex_;
  Mailbox mailbox_;
  std::deque<std::shared_ptr<Collective>> collectives_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Transfer>> transfers_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Task>> ended_
      LOCKSTEP_GUARDED_BY(mutex_);  // dropped when the mutex is released
  // By receives in progress, at the last pass over them.
  std::vector<MatchKey> unmatched_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<int> under_way_{0};
  std::atomic<const char*> closed_{nullptr};  // the reason
  comm::PeerCheckTimer poll_check_;           // of test()
  std::uint64_t number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t pipeline_chunks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t completed_by_all_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // The small call in progress, and its state.
  Request eager_ LOCKSTEP_GUARDED_BY(mutex_);
  Arrival arrival_ LOCKSTEP_GUARDED_BY(mutex_){communicator_};
};

template <class Fill, class Make, class Posted>
auto Engine::start_eager(const Fill& fill, const Make& make, const Posted& posted, Milliseconds timeout)
    -> decltype(make(Request())) {
  Lock lock(*this);
  check();
  fill(eager_);
  const bool is_posted = post_eager();
  try {
    posted(is_posted);
  } catch (...) {
    if (is_posted) abort();
    throw;
  }
  if (is_posted && finish_eager_soon()) return nullptr;
  if (is_posted) return take_over(make);
  auto call = make(Request(eager_));
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
  for (int tries = 0; tries < wait_policy_.tries; ++tries) {
    if (ready()) return true;
    relax();
  }
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < wait_policy_.spin) {
    if (ready()) return true;
    relax();
  }
  return false;
}

// The small call is published, so the other ranks rely on it.
template <class Make>
std::invoke_result_t<const Make&, Request> Engine::take_over(const Make& make) {
  try {
    auto call = make(Request(eager_));
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
