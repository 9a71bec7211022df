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

// Whether some ranks have the same device: all ranks tell each other what `identity` theirs has ("" is like
// no other), by way of the store, in a few requests each. Where `share` is false, that throws ArgumentError
// on all of them, naming the ranks.
bool find_shared_devices(c10d::Store& store, const World& world, const std::string& identity, bool share);

// The words about the ranks that have the same device, "" where all have their own. [rank]: identity.
std::string describe_shared(const std::vector<std::string>& identities);

}  // namespace lockstep::rendezvous
