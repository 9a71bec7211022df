// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

// Clang's names are in https://clang.llvm.org/docs/ThreadSafetyAnalysis.html. Other compilers know none of them.
#ifdef __clang__
#define LOCKSTEP_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(attribute)
#endif
/// On a field or variable: only a thread that holds the mutex reads or writes it.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))
/// On a function or lambda: only a thread that holds the mutex calls it.
#define LOCKSTEP_REQUIRES(mutex) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(mutex))
/// The same of a SharedMutex, for reading.
#define LOCKSTEP_REQUIRES_SHARED(mutex) LOCKSTEP_THREAD_ATTRIBUTE(requires_shared_capability(mutex))
/// On a function whose lock clang cannot follow. A comment says which lock it relies on.
#define LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace lockstep {

// Note [Checked locks]
//
// clang's -Wthread-safety, an error in this project, checks that every use of a guarded field or variable is below a
// lock of its mutex. Constructors and destructors are not checked. The analysis cannot express these cases; each such
// place says on which lock it relies:
// - the mutex of another object, which the guarded one does not know or knows by a second path,
// - a lock that is moved, tried, or paused by an object that holds it,
// - data that one thread uses at first and several use later, such as the results of a thread that was joined.
// LibTorch's generators have a std::mutex, which is not checked either.

/// A std::mutex.
class LOCKSTEP_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  /// Waits until it owns the mutex.
  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  /// Owns the mutex if no other thread does.
  bool try_lock() LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }
  /// Gives the mutex up.
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_{};
};

/// Holds a mutex until the end of its scope, except between unlock() and lock().
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  /// The thread holds the mutex, by try_lock().
  MutexLock(Mutex& mutex, std::adopt_lock_t /*held*/) LOCKSTEP_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  /// Gives the mutex up before the end of the scope.
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) {
    is_held_ = false;
    mutex_.unlock();
  }
  /// Owns the mutex again after unlock().
  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

/// Releases a mutex that the thread holds until the end of its scope.
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(mutex)) : mutex_(mutex) {
    mutex_.unlock();
  }
  ~MutexUnlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

/// A std::condition_variable. The thread that waits holds the mutex, which wait() releases meanwhile. A predicate
/// is called with the mutex held: [this]() LOCKSTEP_REQUIRES(mutex_) { return done_; }.
class Condition {
 public:
  /// Wakes one waiting thread.
  void notify_one() noexcept { changed_.notify_one(); }
  /// Wakes all waiting threads.
  void notify_all() noexcept { changed_.notify_all(); }

  /// Gives the mutex up, waits to be woken and owns it again.
  void wait(Mutex& mutex) LOCKSTEP_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    changed_.wait(held.lock);
  }
  template <typename Predicate>
  void wait(Mutex& mutex, Predicate predicate) LOCKSTEP_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    changed_.wait(held.lock, std::move(predicate));
  }
  template <typename Duration>
  void wait_for(Mutex& mutex, const Duration& time) LOCKSTEP_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    changed_.wait_for(held.lock, time);
  }
  /// Waits as wait() does, at the latest until `time`.
  template <typename TimePoint>
  void wait_until(Mutex& mutex, const TimePoint& time) LOCKSTEP_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    changed_.wait_until(held.lock, time);
  }
  /// The predicate's value: false after the time.
  template <typename Duration, typename Predicate>
  bool wait_for(Mutex& mutex, const Duration& time, Predicate predicate) LOCKSTEP_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    return changed_.wait_for(held.lock, time, std::move(predicate));
  }
  template <typename TimePoint, typename Predicate>
  bool wait_until(Mutex& mutex, const TimePoint& time, Predicate predicate) LOCKSTEP_REQUIRES(mutex) {
    Held held(mutex.mutex_);
    return changed_.wait_until(held.lock, time, std::move(predicate));
  }

 private:
  struct Held {
    explicit Held(std::mutex& mutex) : lock(mutex, std::adopt_lock) {}
    ~Held() { lock.release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable changed_{};
};

/// A std::shared_mutex.
class LOCKSTEP_THREAD_ATTRIBUTE(capability("mutex")) SharedMutex {
 public:
  /// Waits until it alone owns the mutex.
  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  /// Gives up what lock() took.
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  /// Waits until no thread owns the mutex alone.
  void lock_shared() LOCKSTEP_THREAD_ATTRIBUTE(acquire_shared_capability()) { mutex_.lock_shared(); }
  /// Gives up what lock_shared() took.
  void unlock_shared() LOCKSTEP_THREAD_ATTRIBUTE(release_shared_capability()) { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_{};
};

/// Holds a shared mutex alone until the end of its scope.
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock();
  }
  ~WriterLock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

/// Holds a shared mutex with other readers until the end of its scope.
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) LOCKSTEP_THREAD_ATTRIBUTE(acquire_shared_capability(mutex))
      : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~ReaderLock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock_shared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace lockstep
