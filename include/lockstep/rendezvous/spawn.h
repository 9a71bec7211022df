// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep {

/// Arguments of spawn(). PyTorch: those of `torch.multiprocessing.spawn` and of `ProcessContext.join`.
struct SpawnOptions {
  int nprocs = 1;    ///< number of ranks, all on this host
  bool join = true;  ///< whether spawn() waits for their end

  /// Limit for the whole run, from the call of spawn() on, also where nobody joins; 0: none.
  std::chrono::milliseconds timeout{0};

  /// From the SIGTERM that asks ranks to stop to the SIGKILL that makes them.
  std::chrono::milliseconds grace_period{1000};

  /// Threads that a rank uses within one operator (at::get_num_threads()). Default: the cores that this
  /// process may use, shared among the ranks; with OMP_NUM_THREADS set, what LibTorch made of it.
  std::optional<int> threads_per_rank = std::nullopt;
};

/// A rank of spawn() failed, the first one that did. PyTorch: `torch.multiprocessing.ProcessException`.
class RankFailed : public LaunchError {
 public:
  RankFailed(const std::string& message, int rank, int pid) : LaunchError(message), rank_(rank), pid_(pid) {}
  int rank() const { return rank_; }
  int pid() const { return pid_; }

 private:
  int rank_;
  int pid_;
};

/// The function threw. PyTorch: `ProcessRaisedException`.
class RankRaised : public RankFailed {
 public:
  RankRaised(const std::string& message, int rank, int pid, std::string type, std::string text)
      : RankFailed(message, rank, pid), type_(std::move(type)), text_(std::move(text)) {}
  /// The type of what was thrown, as in "std::runtime_error".
  const std::string& type() const { return type_; }
  /// Its what(), the first 16 KiB; empty for what is no std::exception.
  const std::string& text() const { return text_; }

 private:
  std::string type_;
  std::string text_;
};

/// The process ended otherwise than by the end of its function. PyTorch: `ProcessExitedException`.
class RankExited : public RankFailed {
 public:
  RankExited(const std::string& message, int rank, int pid, int exit_code, int signal)
      : RankFailed(message, rank, pid), exit_code_(exit_code), signal_(signal) {}
  int exit_code() const { return exit_code_; }  ///< as a shell tells it: 128 + the signal where there was one
  int signal() const { return signal_; }        ///< the signal that killed it, or 0

 private:
  int exit_code_;
  int signal_;
};

/// The running ranks of a spawn(). PyTorch: `torch.multiprocessing.ProcessContext`.
///
/// At its end what still runs is stopped: SIGTERM, after the grace period SIGKILL. Movable. One thread at a
/// time.
class SpawnContext {
 public:
  class Run;
  explicit SpawnContext(std::unique_ptr<Run> run);
  ~SpawnContext();
  SpawnContext(SpawnContext&&) noexcept;
  SpawnContext& operator=(SpawnContext&&) noexcept;

  /// Waits for the end of all ranks and of what they have started: true when all have ended well, false when
  /// `timeout` passed before. Throws RankRaised or RankExited for the first rank that failed, once the others
  /// have been stopped; TimeoutError when SpawnOptions::timeout has passed, naming the ranks that were still
  /// running; LaunchError when the processes that watch over the ranks were killed. May be called again.
  bool join(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// [i]: the process of rank i.
  const std::vector<int>& pids() const;

 private:
  std::unique_ptr<Run> run_;
};

namespace rendezvous {
SpawnContext spawn_ranks(const SpawnOptions& options, const std::function<void(int rank)>& body);
}

/// Runs `fn(rank, args...)` in options.nprocs processes of its own, forked off this one. In each of them
/// lockstep::init() joins a run of all of them: the environment is that of `lockstep run`.
/// PyTorch: `torch.multiprocessing.spawn` (`start_processes` with `start_method="fork"`).
///
///   lockstep::spawn({.nprocs = 4}, train, settings, std::move(dataset));
///
/// The options come first, because C++ cannot tell where a list of arguments ends that something follows.
///
/// `fn` and `args` may be of any type, captures and move-only ones too: a rank has a copy of all of this
/// process's memory as it was at the call. What it writes there nobody else sees; results come back through
/// files, pipes or shared memory. `fn`'s result is dropped. A rank ends with `fn`: its streams are flushed
/// and what it has registered with atexit() itself is run, but not what this process had registered, nor any
/// of its destructors. Its stdin is /dev/null, its stdout and stderr are this process's.
///
/// Throws as SpawnContext::join() does. When a rank fails the others are stopped. No process is left when
/// this process, a rank, or one of the two that watch over them is killed, SIGKILL included: neither a rank
/// nor anything that a rank has started.
///
/// What LibTorch may have done in this process before: anything on CPU tensors, in as many threads as it
/// likes, backward included, and contexts of init() that have ended. Throws ArgumentError, before anything is
/// started, when a fork would not be safe: another thread runs (named in the message; LibTorch's own idle
/// workers are let go first), CUDA is initialized, a context lives; and where this process or thread is
/// itself a rank. See docs/spawn.md, also for signals.
template <typename Fn, typename... Args>
SpawnContext spawn(const SpawnOptions& options, Fn&& fn, Args&&... args) {
  static_assert(std::is_invocable_v<Fn, int, Args...>, "spawn: fn must be callable as fn(rank, args...)");
  return rendezvous::spawn_ranks(options, [&](int rank) {
    static_cast<void>(std::invoke(std::forward<Fn>(fn), rank, std::forward<Args>(args)...));
  });
}

}  // namespace lockstep
