// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/world.h>
#include <lockstep/comm/backend.h>

#include "backends/backend_spec.h"
#include "base/env.h"
#include "node/node_group.h"

// What a rank uses of its host: a device, cores.
namespace lockstep::rendezvous {

struct DeviceRequest {
  std::optional<c10::Device> wanted = {};  // InitOptions::device; an index may be missing
  bool for_cpu = false;                    // the requested backend carries CPU tensors only
  bool share = false;                      // InitOptions::share_devices
  int count = 0;                           // CUDA devices that this process can use
  bool can_reduce = true;                  // this build has a backend for them
  bool restricted = false;                 // CUDA_VISIBLE_DEVICES is set
};

// The device of a rank, with an index unless it is the CPU. Throws ArgumentError if the host has more ranks
// than devices and they may not share, or if the wanted device does not exist.
c10::Device choose_device(const DeviceRequest& request, const World& world);

// The warning for a run on the CPU although this process can use GPUs, or "".
std::string cpu_warning(const DeviceRequest& request, const backends::BackendSpec& backend);

// Published by each rank.
struct RankDevice {
  std::string kind = "cpu";   // "cpu", "cuda"
  std::string identity = {};  // equal for the same physical device; "": unknown
  std::string error = {};     // why it has no device
};

struct DeviceAgreement {
  bool shared = false;       // some ranks have the same device
  std::string refusal = {};  // why the run cannot continue
};

// `devices`: [rank]. `share`: whether ranks may have the same device.
DeviceAgreement check_devices(const std::vector<RankDevice>& devices, bool share);

// Exchanges the devices of all ranks through the store, in a few requests per rank. Returns whether some
// ranks have the same device. A refusal is an ArgumentError on all ranks.
bool agree_on_devices(c10d::Store& store, const World& world, const RankDevice& own, bool share);

// While it lives, LibTorch's operators on this rank have its share of the cores that the ranks of this host use
// together, as a launcher gives it; rank 0 logs it. Does nothing if OMP_NUM_THREADS or MKL_NUM_THREADS is set,
// if at::set_num_threads() has set a number other than that of the cores, or if the share is not less. A number
// that the program sets meanwhile stays.
class ThreadShare {
 public:
  // `node`: of all ranks, or nullptr if they are on several hosts.
  ThreadShare(const World& world, const node::NodeGroup* node, const Env& env);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int before_ = 0;
  int share_ = 0;  // 0: the number has stayed
};

}  // namespace lockstep::rendezvous
