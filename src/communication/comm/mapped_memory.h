// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::comm {

// Uninitialized memory from which the backend makes its calls without a copy, if it has such memory.
inline at::Tensor memory_for_calls(const ProcessGroup& group, std::int64_t numel,
                                   const at::TensorOptions& options) {
  const auto backend = group.backend();
  const auto device = options.device();
  if (backend->supportsTensorAlloc(device.has_index() ? device.index() : 0)) {
    return backend->allocateTensor(numel, options);
  }
  return at::empty({numel}, options);
}

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

// Whether the backend of a group has such memory.
bool maps_memory(const ProcessGroup& group);

// [i]: `bytes` that rank owners[i] of a group allocates and every rank maps. The kernel places them on the
// owner's NUMA node. Collective.
std::vector<at::Tensor> map_on_all_ranks(const ProcessGroup& group, const std::vector<int>& owners,
                                         std::int64_t bytes, std::source_location where);

// The bytes that tensors of `bytes` take in a mapped block, so that the next one is aligned.
constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// A contiguous tensor of these sizes and options, `offset` bytes into a mapped block. Its storage is its own.
at::Tensor tensor_in(const at::Tensor& block, std::int64_t offset, at::IntArrayRef sizes,
                     const at::TensorOptions& options);

}  // namespace lockstep::comm
