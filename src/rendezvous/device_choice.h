// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/world.h>
#include <lockstep/comm/c10d.h>

namespace lockstep::rendezvous {

// What a rank's device is chosen by.
struct DeviceQuestion {
  std::optional<c10::Device> wanted = {};  // InitOptions::device; an index may be missing
  bool for_cpu = false;                    // the backend that was asked for is the CPU's
  bool share = false;                      // InitOptions::share_devices
  int count = 0;                           // CUDA devices that this process can use
  bool can_reduce = true;                  // whether this build has a backend for them
  bool restricted = false;                 // CUDA_VISIBLE_DEVICES is set
};

// The device of a rank, with an index unless it is the CPU. Throws ArgumentError where there are more ranks
// on the host than devices and they are not to be shared, or the wanted device is not there.
c10::Device choose_device(const DeviceQuestion& question, const World& world);

// What a rank tells the others about its device.
struct DeviceClaim {
  std::string kind = "cpu";    // "cpu", "cuda"
  std::string identity = {};   // "" is like no other
  std::string complaint = {};  // why it has no device at all
};

struct Verdict {
  bool shared = false;       // some ranks have the same device
  std::string refusal = {};  // why the run cannot go on
};

// About all ranks' claims, [rank]. `share`: whether ranks may have the same device.
Verdict judge_devices(const std::vector<DeviceClaim>& claims, bool share);

// All ranks tell each other what they have, by way of the store, in a few requests each, and come to the same
// verdict; a refusal is an ArgumentError on all of them. Returns whether some have the same device.
bool agree_on_devices(c10d::Store& store, const World& world, const DeviceClaim& own, bool share);

}  // namespace lockstep::rendezvous
