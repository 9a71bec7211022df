// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <lockstep/rendezvous/init.h>

namespace lockstep::nn {

// The group that a layer was given; without one the default group, and none where there is no run, as in
// PyTorch.
inline std::optional<ProcessGroup> group_now(const std::optional<ProcessGroup>& given) {
  if (given) return given;
  return is_initialized() ? std::optional(default_group()) : std::nullopt;
}

}  // namespace lockstep::nn
