// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/backends/nccl.h>
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
  c10::Device device{c10::kCPU};                      ///< this rank's, for backends of devices
  NcclOptions nccl = {};
};

struct BackendHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  BackendTraits traits;
  std::shared_ptr<comm::HostGroup> host_group = {};  ///< where all ranks run on one host; else empty
};

/// The names of what carries data in this build, e.g. {"fake", "gloo", "shm"}.
std::vector<std::string> available_backends();

struct BackendChoice {
  /// For create_backend(): a name, or one for each kind of device: "cpu:shm,cuda:nccl". With
  /// "cpu:shm,cuda:shm" GPU tensors go by way of host memory.
  std::string name;
  std::string reason = {};  ///< why it was picked; empty when it was asked for by its name
};

/// Where the ranks of a group are.
struct Whereabouts {
  c10::Device device{c10::kCPU};  ///< this rank's
  bool one_host = true;
  bool share_device = false;  ///< whether some ranks have the same GPU, on which NCCL cannot connect them
};

/// The backends of a group. `wanted` is a name, for the device's kind; "auto" or "": for the CPU shm where
/// all ranks run on one host and otherwise gloo, and where their device is a GPU nccl for that, or where they
/// share one the CPU's by way of host memory; or PyTorch's form with one for each kind of device,
/// "cpu:gloo,cuda:nccl". Throws ArgumentError for what is unknown, not built, or does not fit the device,
/// saying which there are.
BackendChoice resolve_backend(const std::string& wanted, const Whereabouts& ranks);

/// Whether `wanted`, as resolve_backend() takes it, is meant for tensors on the CPU: "gloo", "shm",
/// "cpu:gloo". Throws as it does.
bool is_for_cpu_only(const std::string& wanted);

/// Before ranks meet: throws RendezvousError when the environment asks the backends for what this host does
/// not have.
void check_environment(const std::string& name, const Env& env);

/// Connects. `name` must have come from resolve_backend(). Blocks until all ranks have called it; throws
/// RendezvousError when they cannot be connected.
BackendHandle create_backend(const std::string& name, const BackendRequest& request);

}  // namespace lockstep::backends
