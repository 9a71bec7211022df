// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/registry.h"
#include "node/node_group.h"

namespace lockstep::backends {

// The shm backend, for ranks of one host.
BackendHandle create_shm(const BackendRequest& request);

// MPI, for ranks that mpirun, mpiexec or srun --mpi started. Loads it at the first call.
BackendHandle create_mpi(const BackendRequest& request);
// Throws RendezvousError unless one of them has started this process. `reason`: what needs it, for the error.
void check_mpi_launcher(const Env& env, const std::string& reason = "backend mpi");

// Shared memory between the ranks of each host, and network_between_hosts(). On one host the same as shm.
BackendHandle create_hierarchical(const BackendRequest& request);

// The process group over NCCL that Python's "nccl" is (note at the head of nccl/nccl_backend.h). The
// group's StreamWatch handles failures.
BackendHandle create_nccl(const BackendRequest& request);

// A host-staged backend: carries tensors on `device` through host memory and a backend for the CPU, for ranks
// that share one GPU, where NCCL cannot connect them. A call copies to the host and waits for that copy;
// wait() copies the results back. Threads: as for the CPU backend.
BackendHandle stage_through_host(const BackendHandle& host, c10::DeviceType device);

// Device dispatch: one backend of several that create_backend() made for these ranks, each for the devices of
// its traits; the first is the CPU's. A call goes to the backend of its tensors, a barrier to the CPU's.
// Threads: as the parts.
BackendHandle make_device_dispatch(std::vector<BackendHandle> parts);

// Connects the ranks of a group that all run on one host, through the group's store.
std::shared_ptr<node::NodeGroup> join_node_group(const BackendRequest& request, node::NodeGroup::Part part);

}  // namespace lockstep::backends
