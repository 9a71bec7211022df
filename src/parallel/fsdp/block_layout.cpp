// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/block_layout.h"

#include "comm/mapped_memory.h"
#include "fsdp/parameter_memory.h"

namespace lockstep::fsdp {

BlockLayout::BlockLayout(const std::vector<ShardedParameter>& parameters, std::optional<at::ScalarType> dtype)
    : parameters_(parameters), dtype_(dtype) {
  for (const auto& parameter : parameters_) {
    places_.push_back(bytes_);
    const auto element = static_cast<std::int64_t>(c10::elementSize(whole_dtype(parameter, dtype_)));
    bytes_ += comm::aligned(parameter.numel() * element);
  }
}

at::Tensor BlockLayout::whole_in(const at::Tensor& block, std::size_t index) const {
  const auto& parameter = parameters_[index];
  const auto options = parameter.lock_whole().options().requires_grad(false);
  return comm::tensor_in(block, places_[index], parameter.sizes,
                         options.dtype(whole_dtype(parameter, dtype_)));
}

}  // namespace lockstep::fsdp
