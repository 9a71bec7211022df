// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "fsdp/sharded_parameter.h"

namespace lockstep::fsdp {

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
