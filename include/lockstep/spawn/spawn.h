// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/error.h>
#include <lockstep/base/timeout.h>
#include <lockstep/rendezvous/init.h>

namespace lockstep {

/// Arguments of spawn(). PyTorch: those of `torch.multiprocessing.spawn` and of `ProcessContext.join`.
struct SpawnOptions {
  int nprocs = 1;    ///< number of ranks, all on this host
  bool join = true;  ///< whether spawn() waits for the end of the ranks

  /// Limit for the whole run from the call of spawn(), with or without join(). Default: no limit.
  std::optional<Timeout> timeout = std::nullopt;

  /// Time between SIGTERM and SIGKILL when ranks are stopped.
  Timeout grace_period = std::chrono::seconds(1);

  /// Threads that a rank uses within one operator (at::get_num_threads()). Default: the usable cores divided
  /// by the number of ranks; if OMP_NUM_THREADS is set, LibTorch's value for it.
  std::optional<int> threads_per_rank = std::nullopt;

  /// The line that errors of the run name. Default: where the options are written, `spawn(..., {.nprocs = 2})`.
  std::source_location where = std::source_location::current();
};

/// The first rank of spawn() that failed. The others have been stopped.
/// Data: rank(), pid().
/// Remedy: fix what that rank reports. PyTorch: `torch.multiprocessing.spawn.ProcessException`.
class RankFailed : public LaunchError {
 public:
  explicit RankFailed(const std::string& message, int rank, int pid)
      : LaunchError(message, {.ranks = {rank}}), pid_(pid) {}
  int rank() const { return ranks().front(); }  ///< the rank that failed
  int pid() const { return pid_; }              ///< the process that it was

 private:
  int pid_;
};

/// The rank's function threw an exception. The other ranks have been stopped.
/// Data: rank(), pid(), type() and text() of the exception.
/// Remedy: fix what text() reports. PyTorch: `ProcessRaisedException`.
class RankRaised : public RankFailed {
 public:
  explicit RankRaised(const std::string& message, int rank, int pid, std::string type, std::string text)
      : RankFailed(message, rank, pid), type_(std::move(type)), text_(std::move(text)) {}
  /// The type of the exception, as in "std::runtime_error".
  const std::string& type() const { return type_; }
  /// The first 16 KiB of its what(); empty if it is not a std::exception.
  const std::string& text() const { return text_; }

 private:
  std::string type_;
  std::string text_;
};

/// The process of the rank ended before its function returned. The other ranks have been stopped.
/// Data: rank(), pid(), exit_code(), signal().
/// Remedy: look for what ended the process; SIGKILL is often a lack of memory. PyTorch: `ProcessExitedException`.
class RankExited : public RankFailed {
 public:
  explicit RankExited(const std::string& message, int rank, int pid, int exit_code, int signal)
      : RankFailed(message, rank, pid), exit_code_(exit_code), signal_(signal) {}
  int exit_code() const { return exit_code_; }  ///< as in a shell: 128 + the signal if there is one
  int signal() const { return signal_; }        ///< the signal that killed it, or 0

 private:
  int exit_code_;
  int signal_;
};

/// The running ranks of a spawn(). PyTorch: `torch.multiprocessing.ProcessContext`.
///
/// The destructor stops ranks that still run: SIGTERM, and SIGKILL after the grace period. Movable. Not
/// thread-safe.
class SpawnContext {
 public:
  class Run;
  explicit SpawnContext(std::unique_ptr<Run> run);
  ~SpawnContext();
  SpawnContext(SpawnContext&&) noexcept;
  SpawnContext& operator=(SpawnContext&&) noexcept;

  /// Waits for the end of all ranks and the processes that they have started. Returns true if all ranks
  /// succeeded, and false if `timeout` passed before. Throws RankRaised or RankExited for the first rank that
  /// failed, after the others have been stopped; TimeoutError, which names the ranks that still ran, if
  /// SpawnOptions::timeout has passed; LaunchError if the supervisor of the ranks was killed. May be called
  /// again.
  bool join(std::optional<Timeout> timeout = std::nullopt,
            std::source_location where = std::source_location::current());

  /// [i]: pid of rank i.
  const std::vector<int>& pids() const;

 private:
  std::unique_ptr<Run> run_;
};

/// The number of GPUs that ranks started now can use: those of this host that CUDA_VISIBLE_DEVICES does not
/// hide. Does not initialize CUDA, so it may be called before spawn(): `spawn(..., {.nprocs = gpu_count()})`.
/// PyTorch: `torch.cuda.device_count`.
int gpu_count();

namespace spawning {
/// The part of spawn() that is not a template.
SpawnContext spawn_ranks(const SpawnOptions& options, const std::function<void(int rank)>& body);
}  // namespace spawning

/// Runs `fn(rank)`, or `fn(rank, args...)` with a tuple of arguments, in options.nprocs processes that are
/// forked from this one. lockstep::init() joins the run of all of them: the environment variables are those of
/// `lockstep run`. PyTorch: `torch.multiprocessing.spawn` (`start_processes` with `start_method="fork"`).
///
///   lockstep::spawn(train, {.nprocs = 4});
///   lockstep::spawn(train, std::tuple(settings, std::move(dataset)), {.nprocs = 4});
///
/// `fn` and `args` may have any type, move-only types and lambdas with captures included: a rank has a copy
/// of this process's memory at the call. Memory that a rank writes is its own; return results through files,
/// pipes or shared memory. The result of `fn` is ignored. A rank ends with `fn`: it flushes streams and runs
/// handlers that it has registered with atexit(), but no handlers and destructors of this process. Its stdin
/// is /dev/null; its stdout and stderr are those of this process.
///
/// Throws as SpawnContext::join() does. When a rank fails, the others are stopped. When this process, a rank,
/// or one of the two guards is killed, SIGKILL included, no rank and no process that a rank has started is
/// left.
///
/// This process may have used LibTorch on CPU tensors before, backward and its worker threads included, and
/// may have had contexts of init(). Throws ArgumentError, before it starts a process, if a fork would not be
/// safe: another thread runs (named in the message; LibTorch's idle workers are ended first), CUDA is
/// initialized, or a context exists; and if this process or thread is itself a rank. See docs/spawn.md, also
/// for signals.
template <typename Fn>
SpawnContext spawn(Fn&& fn, const SpawnOptions& options) {
  static_assert(std::is_invocable_v<Fn&, int>,
                "spawn: write spawn(fn, options), with fn callable as fn(rank)");
  return spawning::spawn_ranks(options, [&](int rank) { static_cast<void>(std::invoke(fn, rank)); });
}
template <typename Fn, typename... Args>
SpawnContext spawn(Fn&& fn, std::tuple<Args...> args, const SpawnOptions& options) {
  static_assert(std::is_invocable_v<Fn&, int, Args...>,
                "spawn: fn must be callable as fn(rank, args...), with the tuple's elements as args");
  return spawning::spawn_ranks(options, [&](int rank) {
    std::apply([&](Args&... each) { static_cast<void>(std::invoke(fn, rank, std::forward<Args>(each)...)); },
               args);
  });
}

/// With `nprocs` at PyTorch's position.
template <typename Fn, typename... Args, std::same_as<int> Count>
SpawnContext spawn(Fn&& fn, std::tuple<Args...> args, Count nprocs,
                   std::source_location where = std::source_location::current()) {
  return spawn(std::forward<Fn>(fn), std::move(args), SpawnOptions{.nprocs = nprocs, .where = where});
}

/// Options of spawn_threads().
struct SpawnThreadsOptions {
  /// As InitOptions::backend.
  std::string backend = "auto";

  /// Limit for every call between the ranks.
  Timeout timeout = std::chrono::minutes(30);

  std::string group_name = "default";  ///< for messages

  /// [i]: context.device() of rank i. Default: CUDA device i if this build has nccl, else the CPU.
  std::vector<c10::Device> devices = {};

  /// As InitOptions::share_devices.
  bool share_devices = false;

  /// As SpawnOptions::threads_per_rank.
  std::optional<int> threads_per_rank = std::nullopt;

  /// As InitOptions::check_calls.
  std::optional<bool> check_calls = std::nullopt;

  /// As InitOptions::caching_cpu_allocator.
  bool caching_cpu_allocator = true;
};

/// Runs `body` in `world_size` threads of this process and returns when all have ended. Each thread is a rank
/// with its own default group, rank and device. All features work as between processes, with bit-identical
/// results (ProcessGroup, DistributedDataParallel, SyncBatchNorm, samplers, loaders). PyTorch:
/// `torch.multiprocessing.spawn`, with threads.
///
/// In a rank's thread, default_group(), get_rank() and current_world() refer to that rank; in threads that
/// the rank starts, they refer to the process. A rank's thread must not call init().
///
/// When a rank's body throws, the calls of the others throw PeerLost. When all have ended, this throws Error
/// with the rank and text of the first exception, which is nested in it (std::rethrow_if_nested). A rank that
/// makes no call runs to its end.
///
/// Seed with lockstep::manual_seed(), and create one module per thread; docs/threads.md lists the per-thread
/// state of LibTorch. Each rank's default generator starts as a copy of that of the process.
///
/// The first call in a process changes LibTorch's operator table (for the generators), so no other thread may
/// run operators then.
///
/// Throws ArgumentError for a world_size below 1, a wrong number of devices, and in a rank's thread.
void spawn_threads(int world_size, const std::function<void(Context&)>& body,
                   const SpawnThreadsOptions& options = {},
                   std::source_location where = std::source_location::current());

}  // namespace lockstep

/// PyTorch: `torch.multiprocessing`.
namespace lockstep::multiprocessing {
using lockstep::spawn;
}  // namespace lockstep::multiprocessing

namespace lockstep {
namespace mp = multiprocessing;
}  // namespace lockstep
