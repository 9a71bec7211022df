// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// What a c10d::Backend can carry, so that unsuitable arguments are refused before anything is sent.
/// A c10d::Backend cannot be asked; whoever creates it knows.
struct BackendTraits {
  std::set<c10::DeviceType> devices = {c10::DeviceType::CPU};
  /// Element types of reductions. Complex tensors travel as pairs of reals and need no entry.
  std::set<c10::ScalarType> dtypes = {};
  /// False: AVG is done here, as a sum that is divided when the call is waited for.
  bool averages = false;
  /// Whether a wait ends by itself soon after another rank has died.
  bool notices_death = false;
  /// Whether it compares the ranks' calls itself.
  bool compares_calls = false;
  /// Whether the inputs of all_gather may differ in shape from rank to rank.
  bool uneven_all_gather = false;
  /// What to tell a user whose tensor is on another device.
  std::string device_advice = {};
  /// Where there is one backend for each kind of device: what each of them can do. What stands above is then
  /// that of all together.
  std::vector<BackendTraits> parts = {};

  /// What holds for tensors on a device of this kind.
  const BackendTraits& on(c10::DeviceType device) const {
    const auto part =
        std::ranges::find_if(parts, [&](const auto& each) { return each.devices.contains(device); });
    return part == parts.end() ? *this : *part;
  }
};

}  // namespace lockstep
