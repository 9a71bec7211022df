// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/backends/nccl.h>
#include <lockstep/base/env.h>
#include <lockstep/base/world.h>
#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Arguments of init(). PyTorch: `torch.distributed.init_process_group`.
struct InitOptions {
  /// "nccl" (GPUs), "shm" (memory that the ranks of one host share), "gloo" (TCP), "fake" (for tests: one
  /// process that plays one of the ranks, and waits for no other). "auto": for tensors on the CPU shm where
  /// all ranks share a host, else gloo, and where context.device() is a GPU nccl for tensors there, in the
  /// same group; rank 0 says what it took. "cpu:gloo,cuda:nccl" names one for each kind of device. With
  /// "gloo" or "shm" alone GPU tensors go by way of host memory. PyTorch: `backend`.
  std::string backend = "auto";

  /// How the ranks find each other. PyTorch: `init_method`.
  ///   ""                 see init()
  ///   "env://"           the launcher's environment, and nothing else
  ///   "tcp://host:port"  rank 0 listens there; rank and world_size from here, from the query
  ///                      (`?rank=0&world_size=2`) or from the environment
  ///   "file:///path"     a path on a file system that all ranks see; likewise
  std::string init_method = {};

  std::optional<int> world_size = std::nullopt;  ///< number of ranks
  std::optional<int> rank = std::nullopt;        ///< 0 .. world_size-1

  /// Limit for the ranks to find each other and for every call afterwards.
  std::chrono::milliseconds timeout{1'800'000};

  /// A store that all ranks already share; needs rank and world_size, excludes init_method. It may serve
  /// several runs in turn, but not after an init() on it has failed.
  c10::intrusive_ptr<c10d::Store> store = {};

  std::string group_name = "default";  ///< for messages

  /// The device of context.device(), which init() makes the current one. Default: the CUDA device of the
  /// local rank, where there is one, this build has nccl, and the backend is not the CPU's alone; else the
  /// CPU. "cuda" without an index is that of the local rank.
  std::optional<c10::Device> device = std::nullopt;

  /// Whether ranks may have the same GPU. NCCL cannot connect such ranks: their tensors are reduced by way of
  /// host memory. Also makes the GPU the device where the backend is the CPU's alone. False: more ranks on a
  /// host than GPUs, and two ranks with one, are an ArgumentError on all ranks.
  bool share_devices = false;

  /// For the nccl backend.
  NcclOptions nccl = {};

  /// Before each collective ranks compare what they are about to call; different calls are a DesyncError on
  /// all of them. shm always does; for other backends it costs an all-gather a call, and async calls wait for
  /// it. Default: on when TORCH_DISTRIBUTED_DEBUG is DETAIL, as in PyTorch.
  std::optional<bool> check_calls = std::nullopt;

  /// Where the device is the CPU: whether freed memory is kept, which saves the kernel's work of clearing it
  /// anew in each step and costs up to 3 GiB of idle memory a process. See keep_freed_memory().
  bool keep_freed_memory = true;

  /// Where environment variables are read.
  Env env = {};
};

struct GroupOptions {
  std::string backend = {};  ///< as InitOptions::backend; empty: what was given there
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  ///< default: that of the default group
  std::string group_name = {};                                      ///< for messages; default "group 1", ...
  std::optional<NcclOptions> nccl = std::nullopt;                   ///< default: those of the default group
};

namespace rendezvous {
class Session;
}

/// This process's membership in a run, and the owner of the default process group.
///
/// Leaves at the end of its scope: after the last collective when the scope ends normally, at once when it
/// ends by an exception. Move-only. Keep it until the end of main(). Thread rule: as for ProcessGroup.
class [[nodiscard]] Context {
 public:
  explicit Context(std::unique_ptr<rendezvous::Session> session);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) = delete;

  int rank() const;
  int world_size() const;
  int local_rank() const;        ///< among the ranks on this host
  int local_world_size() const;  ///< number of ranks on this host
  bool is_main() const { return rank() == 0; }
  /// The device that this rank trains on, and the current one of the thread that called init().
  c10::Device device() const;

  /// Blocks until all work that was queued on device() is done, and throws the failure of a collective that
  /// nobody has been told of yet; does nothing on the CPU. PyTorch: `torch.cuda.synchronize`.
  void synchronize() const;

  /// The default group. PyTorch: `torch.distributed.group.WORLD`.
  const ProcessGroup& group() const;

  void barrier(std::source_location where = std::source_location::current()) const;

  /// Runs `action` on rank 0 first, then on all the others at once: for downloads and caches that the others
  /// then find. Returns what it returned on this rank. When rank 0's throws, every rank throws.
  template <typename Action>
  auto main_process_first(Action&& action) const;

  /// A group of some ranks (global ranks, in the order of their group ranks). Every rank of the default
  /// group calls it with the same arguments; ranks outside the new group get nullopt.
  /// PyTorch: `torch.distributed.new_group`.
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks,
                                        const GroupOptions& options = {}) const;

 private:
  // Rank 0's side of main_process_first, and the others'.
  void announce_success() const;
  void announce_failure(const std::string& reason) const noexcept;
  void await_main() const;

  std::unique_ptr<rendezvous::Session> session_;
};

/// Joins the run that this process was started in and makes the default group.
///
/// Where the ranks' whereabouts come from, in this order:
///  1. `options`: store, init_method, rank and world_size;
///  2. the launcher's environment: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, and where given LOCAL_RANK,
///     LOCAL_WORLD_SIZE, GROUP_RANK (`lockstep run`, torchrun);
///  3. MPI launchers that say so: OMPI_COMM_WORLD_RANK or MPI_LOCALRANKID, in a SLURM allocation too;
///  4. SLURM (`srun`): SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, the node list; the port from the job id;
///     then PMI_RANK and its like;
///  5. nothing of all that: a group of one, which is said once on stderr.
/// With 3 and 4 MASTER_ADDR and MASTER_PORT are respected.
///
/// While the context lives, SIGPIPE is ignored as under Python, unless the program handles it: a rank that is
/// gone is an error then and not this rank's silent end.
///
/// Throws RendezvousError when the environment is partial or contradicts itself (listing what was seen and
/// what is missing) or when ranks have not arrived within the timeout (naming them); ArgumentError for wrong
/// options. A second init() while a context lives is an ArgumentError.
Context init(const InitOptions& options = {});

/// Whether a context lives. PyTorch: `torch.distributed.is_initialized`.
bool is_initialized();
/// The default group; throws ArgumentError when no context lives.
ProcessGroup default_group();

int get_rank();        ///< of the default group; 0 when no context lives
int get_world_size();  ///< of the default group; 1 when no context lives
int get_local_rank();  ///< on this host; 0 when no context lives
bool is_main();        ///< get_rank() == 0
void barrier(std::source_location where = std::source_location::current());
/// Context::new_group of the living context.
std::optional<ProcessGroup> new_group(const std::vector<int>& ranks, const GroupOptions& options = {});

template <typename Action>
auto Context::main_process_first(Action&& action) const {
  if (!is_main()) {
    await_main();
    return action();
  }
  const auto tell_others_when_it_fails = [&] {
    try {
      return action();
    } catch (const std::exception& error) {
      announce_failure(error.what());
      throw;
    } catch (...) {
      announce_failure("");
      throw;
    }
  };
  if constexpr (std::is_void_v<decltype(action())>) {
    tell_others_when_it_fails();
    announce_success();
  } else {
    auto result = tell_others_when_it_fails();
    announce_success();
    return result;
  }
}

}  // namespace lockstep
