// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include "backends/registry.h"

namespace lockstep::rendezvous {

// Throws ArgumentError unless C++ and Python ranks can share the backend. `what` begins the message:
// "new_group: a run with Python ranks".
void check_backend_with_python(const backends::BackendSpec& backend, const std::string& what);

// Whether PyTorch's new_group() splits the backend of the default group, which takes all ranks of that.
bool python_splits_default_group(const backends::BackendSpec& default_group,
                                 const backends::BackendSpec& wanted, const Env& env);

// The store in which torch.distributed and create_with_python() connect a group for a device type, "cpu" or
// "cuda". `run`: PyTorch's store of the run, with its prefix. `key`: of the group; empty for the default
// group.
c10::intrusive_ptr<c10d::Store> store_of_python(c10::intrusive_ptr<c10d::Store> run, const std::string& key,
                                                const std::string& device_type);

// Throws RendezvousError if another rank has called this with another backend, or with another version of
// Lockstep or LibTorch. Python ranks call it for shm and hierarchical. `cpu_store`: store_of_python(...,
// "cpu"). One request.
void agree_on_backend(c10d::Store& cpu_store, const std::string& backend, int rank, int size);

// For the wait in the store of a run without Python ranks: throws RendezvousError when Python ranks join it,
// or C++ ranks with with_python. `shared`: the store has keys of a launcher too, and perhaps of an earlier
// program. Only keys of backends for the CPU count then, when three looks find them and the next rank
// missing.
std::function<void()> refuse_python_ranks(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                          bool shared);

// Connects a group whose other ranks may run torch.distributed: over gloo with PyTorch's keys only; over shm
// and hierarchical as the Python package does, which calls this too, and whose groups PyTorch can split.
// `request` has PyTorch's store of the group for the devices of the backend, rank, size, timeout and name.
backends::BackendHandle create_with_python(const std::string& backend, backends::BackendRequest request);

// The same for the Python package: the group is a ReconfigurableBackend, with request.enable_reconfigure
// without members.
backends::BackendHandle create_for_python(const std::string& backend, backends::BackendRequest request);

}  // namespace lockstep::rendezvous
