// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/backends/backends.h>
#include <lockstep/comm/backend.h>

#include "backends/backend_spec.h"
#include "base/env.h"
#include "base/throw_error.h"
#include "comm/membership.h"

namespace lockstep::node {
class NodeGroup;
class ThreadExchange;
}  // namespace lockstep::node
namespace lockstep::shm {
class Heap;
}

namespace lockstep::backends {

struct ShmRequest {
  std::shared_ptr<shm::Heap> heap = {};  // of this rank, where it has one already
  bool has_network = false;              // each rank also has a network's thread, which needs a core
};

struct GlooRequest {
  bool connect_on_use = false;  // two ranks connect when they first exchange data
};

struct MpiRequest {
  bool can_end_calls = false;  // errors end blocking calls too
};

// gloo and nccl, where other ranks run PyTorch.
struct PythonRequest {
  bool only_c10d_keys = false;  // they do not know our keys in the store
  std::string group_name = {};  // PyTorch's
};

// What a backend needs to connect this rank with the others.
struct BackendRequest {
  // For errors.
  Reporter reporter() const { return {rank, size}; }
  ErrorDetails about(std::vector<int> ranks = {}) const {
    return {.ranks = std::move(ranks), .group = group_name};
  }

  c10::intrusive_ptr<c10d::Store> store = {};  // private to the group, after store_barrier()
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{1'800'000};
  std::string group_name = "default";
  std::string master_host = "127.0.0.1";               // an address that all ranks can reach
  bool one_host = true;                                // all ranks are known to run on this host
  std::vector<int> hosts = {};                         // [rank]: number of its host
  Env env = {};                                        // environment variables of the backend
  std::shared_ptr<node::ThreadExchange> threads = {};  // of ranks that are threads of this process
  std::string key = {};                                // unique in the run
  bool enable_reconfigure = false;                     // the ranks connect at the first reconfigure()
  // Where a group is formed again: what has happened to a member that cannot connect; empty: nothing known.
  std::function<std::string()> find_lost = {};
  c10::Device device{c10::kCPU};  // of this rank
  ShmRequest shm = {};
  GlooRequest gloo = {};
  MpiRequest mpi = {};
  NcclOptions nccl = {};
  PythonRequest python = {};
};

using comm::BackendHandle;

// The backends of this build, e.g. {"fake", "gloo", "shm"}.
std::vector<std::string> available_backends();

struct BackendChoice {
  // For create_backend(): a name, or an entry for the CPU and one for the rank's device type. With
  // "cpu:shm,cuda:shm" GPU tensors go through host memory.
  BackendSpec spec;
  std::string reason = {};  // of an automatic choice
};

// Where the ranks of a group are.
struct GroupTopology {
  c10::Device device{c10::kCPU};  // of this rank
  bool one_host = true;
  bool share_hosts = false;   // several hosts, and some ranks have the same one
  bool share_device = false;  // some ranks have the same GPU, so NCCL cannot connect them
  Env env = {};               // environment variables of the backends
};

// The backend that `hierarchical` uses between hosts: "gloo", or "mpi" if this variable says so.
inline constexpr const char* kNetworkVariable = "LOCKSTEP_HIERARCHICAL_NETWORK";
// Throws ArgumentError for another value, or if this build lacks that backend.
std::string network_between_hosts(const Env& env);

// The backends of a group. "auto" selects shm for CPU tensors if all ranks run on one host, hierarchical if
// some do, else gloo. It selects nccl for GPU tensors, or the CPU's backend through host memory if ranks
// share a GPU. Throws ArgumentError, which lists the backends of this build, for a backend that is unknown,
// not built, or does not fit the device.
BackendChoice resolve_backend(const BackendSpec& wanted, const GroupTopology& ranks);

// Call it before ranks connect. Throws RendezvousError if environment variables of the backends name
// something that this host lacks, or show no launcher that the backends need.
void check_environment(const BackendSpec& spec, const Env& env);

// Connects the ranks. `spec` must come from resolve_backend(). Blocks until all ranks have called it; throws
// RendezvousError when they cannot be connected. The groups of shm, and of hierarchical over gloo, can be
// formed again, if they have no other backend.
BackendHandle create_backend(const BackendSpec& spec, const BackendRequest& request);

}  // namespace lockstep::backends
