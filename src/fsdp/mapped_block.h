// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "fsdp/sharded_parameter.h"

// Whole parameters in memory that several ranks map.
namespace lockstep::fsdp {

// Whether the backend of a group has such memory.
bool maps_memory(const ProcessGroup& group);

// [i]: `bytes` that rank owners[i] of a group allocates and every rank maps. The kernel places them on the
// owner's NUMA node. Collective.
std::vector<at::Tensor> map_on_all_ranks(const ProcessGroup& group, const std::vector<int>& owners,
                                         std::int64_t bytes, std::source_location where);

// Where the whole parameters of a group lie in one block.
class BlockLayout {
 public:
  BlockLayout(const std::vector<ShardedParameter>& parameters, std::optional<at::ScalarType> dtype);
  std::int64_t bytes() const { return bytes_; }
  // The parameter with this index, in the type of whole_dtype().
  at::Tensor whole_in(const at::Tensor& block, std::size_t index) const;

 private:
  const std::vector<ShardedParameter>& parameters_;
  std::optional<at::ScalarType> dtype_;
  std::vector<std::int64_t> places_;
  std::int64_t bytes_ = 0;
};

}  // namespace lockstep::fsdp
