// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/engine.h"

#include <sys/prctl.h>
#include <thread>
#include <utility>

#include <c10/util/ScopeExit.h>

#include <lockstep/base/log.h>

#include "base/limits.h"
#include "base/throw_error.h"
#include "comm/peer_check.h"

namespace lockstep::mpi {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSpin = 20us;      // of a wait, before it yields after each test
constexpr auto kBusyTest = 5us;   // a test that took longer moved data
constexpr auto kFirstNap = 10us;  // of the engine's thread; each is twice as long as the one before,
constexpr auto kLongestNap = 200us;
constexpr auto kNapOfOthers = 1ms;  // while other threads test

constexpr auto kEndLimit = 500ms;  // of unfinished calls, at the end of the process

constexpr const char* kHasEnded = "the process ends, and MPI with it";

Threads wanted_threads(const Env& env) {
  const auto text = env.get("LOCKSTEP_MPI_THREADS").value_or("multiple");
  if (text == "multiple") return Threads::all;
  if (text == "serialized") return Threads::one;
  throw_error<ArgumentError>("LOCKSTEP_MPI_THREADS={}; it is multiple or serialized", text);
}

}  // namespace

void Task::end(std::exception_ptr error) {
  error_ = std::move(error);
  on_end();
  done_.store(true, std::memory_order_release);
}

Engine& Engine::get(const Env& env) {
  static Engine& engine =
      *new Engine(load_library(env), wanted_threads(env));  // its thread may outlive main()
  [[maybe_unused]] static const int registered = std::atexit([] { engine.end(); });
  return engine;
}

Engine::Engine(Library& library, Threads wanted) : library_(library) {
  std::promise<Threads> initialised;
  auto threads = initialised.get_future();
  start_thread<std::thread>("MPI", [this, wanted, promise = std::move(initialised)]() mutable {
    loop(wanted, std::move(promise));
  }).detach();
  threads_ = threads.get();
}

void Engine::loop(Threads wanted, std::promise<Threads> initialised) {
  ::prctl(PR_SET_NAME, "lockstep-mpi");
  ::prctl(PR_SET_TIMERSLACK, 1'000);  // naps are shorter than the default slack
  try {
    initialised.set_value(library_.initialize(wanted));
  } catch (...) {
    initialised.set_exception(std::current_exception());
    return;
  }
  {
    const MutexLock lock(mutex_);
    while (!stops_) {
      run_jobs();
      if (!advance_all()) rest();
    }
    end_unfinished();
  }
  try {
    if (!is_spoiled_) {
      library_.finalize();
    } else if (library_.survives_lost_ranks()) {
      library_.leave();
    }
  } catch (const std::exception& error) {
    log(LogLevel::warning, error.what());
  }
  stopped_.set_value();
}

void Engine::run_jobs() {
  while (!jobs_.empty()) {
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    const MutexUnlock unlocked(mutex_);
    job();
  }
}

// True if another test should follow at once.
bool Engine::advance_all() {
  if (tasks_.empty()) return false;
  const std::vector<std::shared_ptr<Task>> tasks(tasks_.begin(), tasks_.end());
  bool finished = false;
  bool was_busy = false;
  {
    const MutexUnlock unlocked(mutex_);
    const auto began = Clock::now();
    for (const auto& task : tasks) {
      if (!task->is_done() && task->mutex_.try_lock()) {
        const MutexLock lock(task->mutex_, std::adopt_lock);
        advance_locked(*task);
      }
      finished = finished || task->is_done();
    }
    was_busy = Clock::now() - began > kBusyTest;
  }
  if (finished) std::erase_if(tasks_, [](const auto& task) { return task->is_done(); });
  if (finished) ended_.notify_all();
  if (finished || was_busy) nap_ = kFirstNap;
  return finished || was_busy;
}

void Engine::rest() {
  const auto is_asked = [this]() LOCKSTEP_REQUIRES(mutex_) { return stops_ || !jobs_.empty(); };
  if (tasks_.empty()) {
    is_idle_ = true;
    wake_.wait(mutex_, [&]() LOCKSTEP_REQUIRES(mutex_) { return is_asked() || !tasks_.empty(); });
    is_idle_ = false;
    nap_ = kFirstNap;
  } else if (waiting_ == 0) {
    wake_.wait_for(mutex_, nap_, is_asked);
    nap_ = std::min<std::chrono::microseconds>(nap_ * 2, kLongestNap);
  } else if (takes_all_threads()) {
    wake_.wait_for(mutex_, kNapOfOthers, is_asked);
  } else {
    const MutexUnlock unlocked(mutex_);
    std::this_thread::yield();
  }
}

bool Engine::advance(Task& task) {
  const MutexLock lock(task.mutex_);
  return advance_locked(task);
}

bool Engine::advance_locked(Task& task) {
  if (task.is_done()) return true;
  try {
    if (!task.pending_->test()) return false;
    task.source_ = task.pending_->source();
    task.pending_.reset();
    task.end(nullptr);
  } catch (...) {
    spoil();
    (void)task.pending_.release();  // MPI may still use its memory
    task.end(std::current_exception());
  }
  return true;
}

// Messages that nobody waits for, as the answers of a monitored barrier, end soon. Then the calls that no
// group has ended.
void Engine::end_unfinished() {
  const auto end = Clock::now() + kEndLimit;
  while (!tasks_.empty() && Clock::now() < end) {
    if (advance_all()) continue;
    const MutexUnlock unlocked(mutex_);
    std::this_thread::yield();
  }
  has_ended_ = true;
  jobs_.clear();  // breaks the promises to those that wait
  for (const auto& task : tasks_) {
    const MutexLock own(task->mutex_);
    if (task->is_done()) continue;
    spoil();
    abandoned_.push_back(task);
    (void)task->pending_.release();
    task->end(std::make_exception_ptr(Error(kHasEnded)));
  }
  tasks_.clear();
  ended_.notify_all();
}

void Engine::run(const std::function<void()>& job) {
  if (has_ended_) throw Error(kHasEnded);
  if (takes_all_threads()) return job();
  std::packaged_task<void()> own(job);
  auto done = own.get_future();
  {
    const MutexLock lock(mutex_);
    if (has_ended_) throw Error(kHasEnded);
    jobs_.push_back(std::move(own));
  }
  wake_.notify_one();
  done.get();
}

void Engine::start(const std::shared_ptr<Task>& task, const Start& start) {
  run([&] {
    const MutexLock own(task->mutex_);
    task->pending_ = start();
  });
  {
    const MutexLock lock(mutex_);
    tasks_.push_back(task);
    nap_ = kFirstNap;
    if (!is_idle_) return;
  }
  wake_.notify_one();
}

bool Engine::test(Task& task) {
  if (task.is_done()) return true;
  bool done = false;
  run([&] { done = advance(task); });
  return done;
}

void Engine::wait(Task& task, std::chrono::milliseconds timeout, const PeerCheck& check) {
  const auto end = Clock::now() + timeout;
  ++waiting_;
  const auto counted = c10::make_scope_exit([this] { --waiting_; });
  try {
    takes_all_threads() ? poll(task, end, check) : sleep_until_done(task, end, check);
  } catch (const TimeoutError&) {
    throw;
  } catch (...) {
    spoil();
    throw;
  }
  task.throw_if_failed();
}

void Engine::poll(Task& task, Clock::time_point end, const PeerCheck& check) {
  const auto began = Clock::now();
  comm::PeerCheckTimer timer;
  while (!advance(task)) {
    const auto now = Clock::now();
    if (now >= end || timer.is_due(now)) check(now >= end);
    if (now - began > kSpin) std::this_thread::yield();
  }
}

void Engine::sleep_until_done(Task& task, Clock::time_point end, const PeerCheck& check) {
  MutexLock lock(mutex_);
  wake_.notify_one();
  comm::PeerCheckTimer timer;
  while (!task.is_done()) {
    const auto now = Clock::now();
    if (now < end && !timer.is_due(now)) {
      ended_.wait_until(mutex_, std::min(end, now + comm::kPeerCheckPeriod));
      continue;
    }
    lock.unlock();
    check(now >= end);
    lock.lock();
  }
}

void Engine::cancel(Task& task) {
  run([&] {
    const MutexLock lock(task.mutex_);
    if (task.is_done()) return;
    task.pending_->cancel();
    task.end(nullptr);
  });
}

void Engine::abandon(const std::shared_ptr<Task>& task) {
  const MutexLock lock(mutex_);
  const MutexLock own(task->mutex_);
  if (task->is_done()) return;
  spoil();
  abandoned_.push_back(task);
  (void)task->pending_.release();
  task->end(std::make_exception_ptr(Error("it was aborted")));
  ended_.notify_all();
}

void Engine::end() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
  }
  wake_.notify_one();
  stopped_.get_future().wait();
}

}  // namespace lockstep::mpi
