// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::serialize {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Two of these strided tensors whose memory overlaps, from the first to the last element of each; the one
/// that comes first here is named first.
std::optional<std::pair<std::string, std::string>> find_shared_memory(
    const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::serialize
