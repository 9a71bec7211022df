// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/shared_memory.h"

#include <algorithm>
#include <cstdint>

namespace lockstep::serialize {
namespace {

struct MemoryExtent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t position = 0;
};

MemoryExtent extent_of(const at::Tensor& tensor, std::size_t position) {
  const auto begin = reinterpret_cast<std::uint64_t>(tensor.const_data_ptr());
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + static_cast<std::uint64_t>(last + 1) * tensor.element_size(), position};
}

}  // namespace

std::optional<std::pair<std::string, std::string>> find_shared_memory(
    const std::vector<NamedTensor>& tensors) {
  // Addresses of all devices differ: CUDA has one address space.
  std::vector<MemoryExtent> extents;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].tensor.numel() > 0) extents.push_back(extent_of(tensors[i].tensor, i));
  }
  std::ranges::sort(extents, {}, &MemoryExtent::begin);
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    const auto [first, second] = std::minmax(extents[i - 1].position, extents[i].position);
    return std::pair(tensors[first].name, tensors[second].name);
  }
  return std::nullopt;
}

}  // namespace lockstep::serialize
