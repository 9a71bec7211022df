// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::comm {

// A backend whose ranks map each other's memory, so that one copy of a tensor serves all of them.
class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  // Allocates memory in which every rank has to map one tensor. Returns its place. The memory is free again
  // when all these tensors are destroyed.
  virtual std::int64_t allocate_mapped(std::size_t bytes) = 0;
  // `bytes` elements of uint8 at a place that rank `owner` has allocated. Page-aligned.
  virtual at::Tensor map(int owner, std::int64_t place, std::size_t bytes) = 0;
};

}  // namespace lockstep::comm
