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

// The part of c10d that Lockstep builds on. Differences between LibTorch versions are settled here and
// nowhere else; 2.13 is the version that is tested.

namespace lockstep {

/// The tensors and calls that a c10d::Backend carries. Unsuitable arguments are refused before anything is
/// sent. A c10d::Backend does not report them, so its creator does.
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
  /// Advice for a user whose tensor is on another device.
  std::string device_advice = {};
  /// One backend for each kind of device: the traits of each. The fields above are then
  /// those of all together.
  std::vector<BackendTraits> parts = {};

  /// The traits for tensors on a device of this kind.
  const BackendTraits& on(c10::DeviceType device) const {
    const auto part =
        std::ranges::find_if(parts, [&](const auto& each) { return each.devices.contains(device); });
    return part == parts.end() ? *this : *part;
  }
};

}  // namespace lockstep
