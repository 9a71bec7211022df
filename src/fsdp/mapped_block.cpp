// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/mapped_block.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "comm/mapped_memory.h"
#include "fsdp/parameter_memory.h"

namespace lockstep::fsdp {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

bool maps_memory(const ProcessGroup& group) {
  return dynamic_cast<comm::MappedMemory*>(group.backend().get()) != nullptr;
}

std::vector<at::Tensor> map_on_all_ranks(const ProcessGroup& group, const std::vector<int>& owners,
                                         std::int64_t bytes, std::source_location where) {
  const auto backend = group.backend();
  auto& mapped = dynamic_cast<comm::MappedMemory&>(*backend);
  const auto size = static_cast<std::size_t>(bytes);
  const auto place = at::zeros({1}, at::kLong), places = at::zeros({group.size()}, at::kLong);
  if (std::ranges::count(owners, group.rank()) > 0) place.fill_(mapped.allocate_mapped(size));
  group.all_gather_into_tensor(places, place, where);
  std::vector<at::Tensor> blocks;
  for (const auto owner : owners)
    blocks.push_back(mapped.map(owner, places[owner].item<std::int64_t>(), size));
  return blocks;
}

BlockLayout::BlockLayout(const std::vector<ShardedParameter>& parameters, std::optional<at::ScalarType> dtype)
    : parameters_(parameters), dtype_(dtype) {
  for (const auto& parameter : parameters_) {
    places_.push_back(bytes_);
    const auto element = static_cast<std::int64_t>(c10::elementSize(whole_dtype(parameter, dtype_)));
    bytes_ += (parameter.numel() * element + kAlignment - 1) / kAlignment * kAlignment;
  }
}

at::Tensor BlockLayout::whole_in(const at::Tensor& block, std::size_t index) const {
  const auto& parameter = parameters_[index];
  const auto options = parameter.lock_whole().options().requires_grad(false);
  auto* const start = static_cast<std::byte*>(block.data_ptr()) + places_[index];
  // Not block.view(type): the storages of the parameter's tensors belong to this rank alone.
  return at::from_blob(
      start, parameter.sizes, [block](void*) {}, options.dtype(whole_dtype(parameter, dtype_)));
}

}  // namespace lockstep::fsdp
