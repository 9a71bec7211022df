// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/env.h>
#include <lockstep/comm/backend_traits.h>
#include <lockstep/comm/c10d.h>

namespace lockstep::comm {
class HostGroup;
class ThreadMeeting;
}  // namespace lockstep::comm

namespace lockstep::backends {

/// What a backend needs to connect this rank with the others.
struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store = {};  ///< private to the group; all ranks have arrived there
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{1'800'000};
  std::string group_name = "default";
  std::string master_host = "127.0.0.1";              ///< an address that all ranks can reach
  bool one_host = true;                               ///< whether all ranks are known to run on this host
  Env env = {};                                       ///< where the backend's environment variables are read
  std::shared_ptr<comm::ThreadMeeting> threads = {};  ///< where the ranks are threads of this process
  std::string key = {};                               ///< which no other group of the run has
};

struct BackendHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  BackendTraits traits;
  std::shared_ptr<comm::HostGroup> host_group = {};  ///< where all ranks run on one host; else empty
};

/// The names that create_backend() takes in this build, e.g. {"fake", "gloo", "shm"}.
std::vector<std::string> available_backends();

struct BackendChoice {
  std::string name;         ///< for create_backend()
  std::string reason = {};  ///< why it was picked; empty when it was asked for by its name
};

/// The backend for tensors on `device`. `wanted` is a name; "auto" or "", the best for these ranks (on the
/// CPU shm where all of them run on one host, otherwise gloo); or PyTorch's form with one for each kind of
/// device, "cpu:gloo,cuda:nccl". Throws ArgumentError for what is unknown or not built, saying which there
/// are.
BackendChoice resolve_backend(const std::string& wanted, const c10::Device& device, bool one_host);

/// Before ranks meet: throws RendezvousError when the environment asks the backend for what this host does
/// not have.
void check_environment(const std::string& name, const Env& env);

/// Connects. `name` must have come from resolve_backend(). Blocks until all ranks have called it; throws
/// RendezvousError when they cannot be connected.
BackendHandle create_backend(const std::string& name, const BackendRequest& request);

}  // namespace lockstep::backends
