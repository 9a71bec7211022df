// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <memory>

#include <lockstep/base/mutex.h>

#include "backends/mpi/library.h"
#include "base/env.h"

// Note [Progress of MPI]
//
// MPI advances a started call only while some thread is inside of MPI. A thread that waits for a call tests
// it without a break. For calls that nobody waits for, as those of DDP during backward, a thread of the
// engine tests them: again at once after a test that took long, because it moved or reduced data, and else
// after a nap, so that it leaves the cores to backward.
//
// The same thread initialises and finalizes MPI. Where MPI takes calls of one thread only, it makes all of
// them, so a blocking call becomes a started one that is waited for.
//
// MPI cannot be initialised twice, so it is finalized at the end of the process, not of a context. That waits
// for all ranks, so after an error, or with unfinished calls, it is not finalized at all.
//
// Where MPI survives lost ranks, calls that end because of one are errors like others, see Note [Lost ranks]
// in module/lost_ranks.h. Blocking calls then are started ones that are waited for, because a wait can also
// end for a reason that MPI does not know.

namespace lockstep::mpi {

// A started call. A derived class keeps the call's memory alive.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  // Throws MPI's error. After is_done().
  void throw_if_failed() const {
    if (error_) std::rethrow_exception(error_);
  }
  int source() const { return source_; }

 protected:
  virtual void on_end() {}

 private:
  friend class Engine;
  void end(std::exception_ptr error) LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  std::unique_ptr<Pending> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> done_{false};
  // Set before done_, and read after it.
  std::exception_ptr error_;
  int source_ = kAnyPeer;
};

// This process's use of MPI. Safe from any thread.
class Engine {
 public:
  using Start = std::function<std::unique_ptr<Pending>()>;

  // The only engine. The first call loads the module and initialises MPI, and throws Error if it cannot.
  static Engine& get(const Env& env);

  Library& library() { return library_; }
  // Whether callers may use the communicators themselves.
  bool takes_all_threads() const { return threads_ == Threads::all; }
  // Whether the process ends and MPI is finalized, or will not be. Objects that live longer leave it alone.
  bool has_ended() const { return has_ended_; }
  // Runs `job` where MPI may be called. Throws Error after has_ended().
  void run(const std::function<void()>& job);
  // Starts a call, which continues whether or not it is waited for.
  void start(const std::shared_ptr<Task>& task, const Start& start);
  bool test(Task& task);
  // Calls `check` as Note [Dead, refused or late?] in comm/peer_check.h says, which throws if the call has not
  // ended when it is late.
  using PeerCheck = std::function<void(bool is_late)>;
  void wait(Task& task, std::chrono::milliseconds timeout, const PeerCheck& check);
  // Ends a receive that nobody waits for any more.
  void cancel(Task& task);
  // Ends it for us; MPI may still use its memory, which is never freed.
  void abandon(const std::shared_ptr<Task>& task);
  // MPI will not be finalized.
  void spoil() { is_spoiled_ = true; }
  bool is_spoiled() const { return is_spoiled_; }

 private:
  Engine(Library& library, Threads wanted);
  void loop(Threads wanted, std::promise<Threads> initialised);
  void run_jobs() LOCKSTEP_REQUIRES(mutex_);
  bool advance_all() LOCKSTEP_REQUIRES(mutex_);
  void rest() LOCKSTEP_REQUIRES(mutex_);
  bool advance(Task& task);
  bool advance_locked(Task& task) LOCKSTEP_REQUIRES(task.mutex_);
  void poll(Task& task, std::chrono::steady_clock::time_point end, const PeerCheck& check);
  void sleep_until_done(Task& task, std::chrono::steady_clock::time_point end, const PeerCheck& check);
  void end();
  void end_unfinished() LOCKSTEP_REQUIRES(mutex_);

  Library& library_;
  Threads threads_ = Threads::one;
  std::atomic<bool> is_spoiled_{false};
  std::atomic<bool> has_ended_{false};
  std::atomic<int> waiting_{0};
  Mutex mutex_;
  Condition wake_;
  Condition ended_;
  std::deque<std::packaged_task<void()>> jobs_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Task>> tasks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Task>> abandoned_ LOCKSTEP_GUARDED_BY(mutex_);
  std::chrono::microseconds nap_ LOCKSTEP_GUARDED_BY(mutex_){0};
  bool is_idle_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stops_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::promise<void> stopped_;
};

}  // namespace lockstep::mpi
