// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

// The part of c10d that Lockstep builds on.

namespace lockstep {

/// The tensors and calls that a c10d::Backend carries. ProcessGroup rejects unsupported arguments before
/// anything is sent. A c10d::Backend does not report its traits, so its creator supplies them.
struct BackendTraits {
  std::set<c10::DeviceType> devices = {c10::DeviceType::CPU};  ///< device types whose tensors it takes
  /// Element types of reductions. Complex tensors travel as pairs of reals and need no entry.
  std::set<c10::ScalarType> dtypes = {};
  /// Whether the backend supports AVG. If false, ProcessGroup sums and divides the result in wait().
  bool averages = false;
  /// Whether a wait fails soon after another rank has died.
  bool notices_death = false;
  /// Whether the backend itself compares the ranks' calls.
  bool compares_calls = false;
  /// Whether the inputs of all_gather may differ in shape from rank to rank.
  bool uneven_all_gather = false;
  /// Advice for a user whose tensor is on another device.
  std::string device_advice = {};
  /// For device dispatch: the traits of each device type's backend. The fields above then combine them.
  std::vector<BackendTraits> parts = {};

  /// The traits for tensors on a device of this type.
  const BackendTraits& on(c10::DeviceType device) const {
    const auto part =
        std::ranges::find_if(parts, [&](const auto& each) { return each.devices.contains(device); });
    return part == parts.end() ? *this : *part;
  }
};

}  // namespace lockstep
