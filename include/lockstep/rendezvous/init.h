// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/backends/backends.h>
#include <lockstep/base/timeout.h>
#include <lockstep/base/world.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/runtime/collectives.h>
#include <lockstep/runtime/default_group.h>

namespace lockstep {

/// Arguments of init() and init_process_group(): PyTorch's in PyTorch's order, then Lockstep's.
struct InitOptions {
  /// "nccl" (GPUs), "shm" (shared memory of one host), "gloo" (TCP), or "fake" (tests: one process acts as
  /// one rank and waits for no other). "auto": CPU tensors use shm on one host, hierarchical on several,
  /// and gloo if each rank is on a host of its own; GPU tensors use nccl, in the same group. Rank 0 logs the
  /// choice. "cpu:gloo,cuda:nccl" names a backend for each device type. With "gloo" or "shm" alone training
  /// uses the CPU unless `device` is a GPU; GPU tensors go through host memory then. PyTorch: `backend`.
  std::string backend = "auto";

  /// How the ranks find each other. PyTorch: `init_method`.
  ///   ""                 the launcher's variables, see init()
  ///   "env://"           only the launcher's environment variables
  ///   "tcp://host:port"  rank 0 listens there; rank and world_size from these options, the query
  ///                      (`?rank=0&world_size=2`) or the environment
  ///   "file:///path"     an absolute path on a file system that all ranks share; rank and world_size as
  ///   above
  std::string init_method = {};

  /// Limit for the rendezvous and for every later call.
  Timeout timeout = std::chrono::minutes(30);

  std::optional<int> world_size = std::nullopt;  ///< number of ranks
  std::optional<int> rank = std::nullopt;        ///< 0 .. world_size-1

  /// A store that all ranks share; needs rank and world_size, excludes init_method. It may serve several
  /// runs, one after the other, unless an init() with it has failed.
  c10::intrusive_ptr<c10d::Store> store = {};

  std::string group_name = "default";  ///< for messages

  /// Whether other ranks are Python processes that call torch.distributed.init_process_group() with the same
  /// backend: "gloo", "nccl", or with the package lockstep_torch "shm" or "hierarchical". init() then meets
  /// them under PyTorch's store keys, and DistributedDataParallel makes the calls of Python's. All C++ ranks
  /// set it. Over "nccl" the ranks connect in their first call, as in Python without `device_id`; from
  /// LibTorch 2.15 on in init(), as in Python. Objects and other calls that cannot be mixed are an
  /// ArgumentError (docs/python.md).
  bool with_python = false;

  /// The device of context.device(), which init() makes current. Default: the CUDA device of the local rank
  /// if it exists, this build has nccl, and the backend is not for CPU tensors only; else the CPU. "cuda"
  /// without an index: that of the local rank.
  std::optional<c10::Device> device = std::nullopt;

  /// Whether ranks may have the same GPU. NCCL cannot connect such ranks, so their tensors go through host
  /// memory. Also makes the GPU the default device with a backend for CPU tensors. False: ranks that share a
  /// GPU, and more ranks than GPUs on a host, are an ArgumentError on all ranks.
  bool share_devices = false;

  /// Settings of the nccl backend.
  NcclOptions nccl = {};

  /// Whether the ranks compare each collective before they run it; different calls are a DesyncError on all
  /// ranks. shm always compares. Other backends need an all-gather per call; asynchronous calls wait for it.
  /// Default: true if TORCH_DISTRIBUTED_DEBUG is DETAIL, as in PyTorch.
  std::optional<bool> check_calls = std::nullopt;

  /// On the CPU: whether freed memory is kept for the next step, so that the kernel does not clear it again.
  /// Costs up to 3 GiB of idle memory per process. See enable_caching_cpu_allocator().
  bool caching_cpu_allocator = true;

  /// Whether an exception that nothing catches is reported with the rank while the context exists: stdout and
  /// std::cout are flushed, one report is written to stderr, and the process ends as before, by the
  /// std::terminate handler of the program, or by abort(). False: init() sets no such handler.
  bool report_uncaught_exceptions = true;

  /// For a process that joins a group of others later: init() waits for no other rank, and the default group
  /// has no members until Context::reconfigure(); calls on it throw Error before. Rank and world size are
  /// preliminary. For "shm" and "hierarchical"; "auto" is shm. All members need the same store, from the
  /// launcher, MASTER_ADDR and MASTER_PORT (where rank 0 serves it), or `store`. PyTorch:
  /// `enable_reconfigure`.
  bool enable_reconfigure = false;
};

class Context;
namespace rendezvous {
class Session;
/// The part of lockstep::init_process_group() that is not a template.
Context& init_process_group(const std::string& backend, const InitOptions& options,
                            std::source_location where);
}  // namespace rendezvous

/// This process's membership in a run. Owns the default process group.
///
/// The destructor leaves the run: after the last collective, or immediately if an exception ends the scope.
/// destroy_process_group() leaves it earlier; the destructor then does nothing, and the functions below throw
/// ArgumentError. Move-only. Keep it until the end of main(). Threads: as for ProcessGroup.
class [[nodiscard]] Context {
 public:
  explicit Context(std::unique_ptr<rendezvous::Session> session);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) = delete;

  /// The rank of this process, from 0.
  int rank() const;
  /// The number of ranks of the run.
  int world_size() const;
  int local_rank() const;        ///< among the ranks on this host
  int local_world_size() const;  ///< number of ranks on this host
  /// Whether this is rank 0.
  bool is_main_process() const { return rank() == 0; }
  /// The device of this rank, which is current in the thread that called init().
  c10::Device device() const;

  /// Blocks until all work queued on device() is done, and throws the failure of a collective that no call
  /// has thrown yet. Does nothing on the CPU. PyTorch: `torch.cuda.synchronize`.
  void synchronize() const;

  /// The default group. PyTorch: `torch.distributed.group.WORLD`.
  const ProcessGroup& group() const;

  /// Waits until all ranks have called it.
  void barrier(std::source_location where = std::source_location::current()) const;

  /// Runs `action` on rank 0, then on all other ranks: for downloads and caches that the other ranks reuse.
  /// Returns the result of this rank's `action`. If `action` throws on rank 0, every rank throws.
  template <typename Action>
  auto main_process_first(Action&& action,
                          std::source_location where = std::source_location::current()) const;

  /// Forms the default group again, of other members: as ProcessGroup::reconfigure(). Then group(), rank(),
  /// world_size() and the local numbers, which are counted anew, are those of the new group. Closes the
  /// groups of new_group() and split_group(). Objects that were made over the old group, as
  /// DistributedDataParallel, stay with it and cannot go on.
  void reconfigure(const ReconfigureOptions& options,
                   std::source_location where = std::source_location::current()) const;

  /// Creates a group of `ranks` (global ranks, in the order of their group ranks). Every rank of the default
  /// group calls it with the same arguments. On ranks outside of the new group the result converts to false.
  /// PyTorch: `torch.distributed.new_group`.
  ProcessGroup new_group(const std::vector<int>& ranks, const GroupOptions& options = {},
                         std::source_location where = std::source_location::current()) const;

 private:
  friend void destroy_process_group(const std::optional<ProcessGroup>& group, std::source_location where);
  // Throws ArgumentError if this context has left its run.
  rendezvous::Session& session() const;
  // Rank 0's side of main_process_first, and the others'.
  void report_success(std::source_location where) const;
  void report_failure(const std::string& reason, std::source_location where) const noexcept;
  void await_main(std::source_location where) const;

  mutable std::unique_ptr<rendezvous::Session>
      session_;  // destroy_process_group() ends that of a constant, too
};

/// Joins the run in which this process was started, and creates the default group.
///
/// Sources of rank, world size and address of rank 0, in this order:
///  1. `options`: store, init_method, rank and world_size;
///  2. the launcher's environment: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, and if set LOCAL_RANK,
///     LOCAL_WORLD_SIZE, GROUP_RANK (`lockstep run`, torchrun);
///  3. MPI launchers: OMPI_COMM_WORLD_RANK or MPI_LOCALRANKID, also in a SLURM allocation;
///  4. SLURM (`srun`): SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, the node list; the port from the job id;
///     then PMI_RANK and related variables;
///  5. none of these: a group of one, with a message on stderr.
/// 3 and 4 use MASTER_ADDR and MASTER_PORT if they are set.
///
/// Until the context ends, LibTorch's operators use the rank's share of the host's cores, which rank 0 logs,
/// unless OMP_NUM_THREADS or MKL_NUM_THREADS is set or at::set_num_threads() has changed LibTorch's
/// default. With `with_python` the number stays; with `enable_reconfigure` until Context::reconfigure().
///
/// While the context exists, SIGPIPE is ignored, as in Python, unless the program handles it. A write to a
/// lost rank is then an error instead of the end of this process.
///
/// Throws RendezvousError if the environment is incomplete or contradicts itself (listing the variables that
/// are set and missing) or if ranks have not arrived within the timeout (naming them), and ArgumentError for
/// wrong options and for a second init() while a context exists. PyTorch:
/// `torch.distributed.init_process_group`.
Context init(const InitOptions& options = {}, std::source_location where = std::source_location::current());

/// init() for programs that keep no context: the process keeps it until destroy_process_group(), or until the
/// end of main() or std::exit(EXIT_SUCCESS). A process that ends with another status leaves as one that was
/// killed: the other ranks' calls throw PeerLost. The result is the context, which a program may ignore. With a
/// context of init(), whose destructor also leaves the run when an exception ends the scope, a program needs
/// neither function. Throws as init(). PyTorch: `torch.distributed.init_process_group`.
Context& init_process_group(const InitOptions& options = {},
                            std::source_location where = std::source_location::current());
/// Takes the backend as the first argument, as PyTorch does:
/// `init_process_group("gloo", {.world_size = 2, .rank = 0})`. Throws ArgumentError if the options name another backend.
template <std::convertible_to<std::string> Backend>
Context& init_process_group(const Backend& backend, const InitOptions& options = {},
                            std::source_location where = std::source_location::current()) {
  return rendezvous::init_process_group(backend, options, where);
}

/// Leaves the run that init_process_group() or init() has joined: the default group and all other groups end, as
/// at the end of the context of init(), which then does nothing more. Throws ArgumentError without a run. Of
/// another `group` it closes only that, as ProcessGroup::close(); nothing on a rank outside of it. PyTorch:
/// `torch.distributed.destroy_process_group`.
void destroy_process_group(const std::optional<ProcessGroup>& group = std::nullopt,
                           std::source_location where = std::source_location::current());

/// Context::new_group of the current context.
ProcessGroup new_group(const std::vector<int>& ranks, const GroupOptions& options = {},
                       std::source_location where = std::source_location::current());
/// Takes PyTorch's arguments by position: `new_group({0, 1}, 30s, "gloo")`.
inline ProcessGroup new_group(const std::vector<int>& ranks, Timeout timeout, const std::string& backend = {},
                              std::source_location where = std::source_location::current()) {
  return new_group(ranks, GroupOptions{.timeout = timeout, .backend = backend}, where);
}

/// Splits a group of this run, with `{}` the default group: returns the new group of the part of `split_ranks` that this
/// rank is in. On a rank in no part the result converts to false. Parts hold ranks within `parent_pg`; a rank's position in its part is its rank in the new group,
/// and no rank is in two. Only the ranks of `parent_pg` call it, all with the same arguments. Backend,
/// timeout and NCCL options are by default the parent's. Any backend. PyTorch:
/// `torch.distributed.split_group` (which sorts the ranks of a part before 2.14).
ProcessGroup split_group(const std::optional<ProcessGroup>& parent_pg,
                         const std::vector<std::vector<int>>& split_ranks, const GroupOptions& options = {},
                         std::source_location where = std::source_location::current());

/// The group of this rank, which converts to false on a rank in none, and all groups in their order:
/// `const auto [own, all] = lockstep::new_subgroups(2)`.
using Subgroups = std::pair<ProcessGroup, std::vector<ProcessGroup>>;

/// Splits the ranks of the run into groups of `group_size` neighbours. Every rank calls it with the same
/// arguments. Throws ArgumentError unless the number of ranks is a multiple of `group_size`. PyTorch:
/// `torch.distributed.new_subgroups`.
Subgroups new_subgroups(int group_size, const GroupOptions& options = {},
                        std::source_location where = std::source_location::current());

/// Creates a group of each list of global ranks. Every rank of the run calls it with the same arguments. Throws
/// ArgumentError for no lists, and for a rank in two of them. PyTorch:
/// `torch.distributed.new_subgroups_by_enumeration`.
Subgroups new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup_list,
                                       const GroupOptions& options = {},
                                       std::source_location where = std::source_location::current());

template <typename Action>
auto Context::main_process_first(Action&& action, std::source_location where) const {
  if (!is_main_process()) {
    await_main(where);
    return action();
  }
  const auto tell_others_when_it_fails = [&] {
    try {
      return action();
    } catch (const std::exception& error) {
      report_failure(error.what(), where);
      throw;
    } catch (...) {
      report_failure("", where);
      throw;
    }
  };
  if constexpr (std::is_void_v<decltype(action())>) {
    tell_others_when_it_fails();
    report_success(where);
  } else {
    auto result = tell_others_when_it_fails();
    report_success(where);
    return result;
  }
}

}  // namespace lockstep
