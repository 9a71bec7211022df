// SPDX-License-Identifier: BSD-3-Clause
#include "comm/mapped_memory.h"

#include <algorithm>
#include <exception>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/throw_error.h"

namespace lockstep::comm {
namespace {

constexpr std::int64_t kNoPlace = -1;

}  // namespace

bool maps_memory(const ProcessGroup& group) {
  return dynamic_cast<MappedMemory*>(group.backend().get()) != nullptr;
}

std::vector<at::Tensor> map_on_all_ranks(const ProcessGroup& group, const std::vector<int>& owners,
                                         std::int64_t bytes, std::source_location where) {
  const auto backend = group.backend();
  auto& mapped = dynamic_cast<MappedMemory&>(*backend);
  const auto size = static_cast<std::size_t>(bytes);
  const auto place = at::zeros({1}, at::kLong), places = at::zeros({group.size()}, at::kLong);
  std::exception_ptr failed;
  try {
    if (std::ranges::count(owners, group.rank()) > 0) place.fill_(mapped.allocate_mapped(size));
  } catch (...) {
    failed = std::current_exception();
    place.fill_(kNoPlace);
  }
  group.all_gather_into_tensor(places, place, where);
  if (failed) std::rethrow_exception(failed);
  for (const auto owner : owners) {
    if (places[owner].item<std::int64_t>() == kNoPlace)
      throw_error<Error>("rank {} has no shared memory for {} bytes; its error says why", owner, bytes);
  }
  std::vector<at::Tensor> blocks;
  for (const auto owner : owners)
    blocks.push_back(mapped.map(owner, places[owner].item<std::int64_t>(), size));
  return blocks;
}

at::Tensor tensor_in(const at::Tensor& block, std::int64_t offset, at::IntArrayRef sizes,
                     const at::TensorOptions& options) {
  // Not block.view(type), which has the storage of the whole block.
  return at::from_blob(
      static_cast<std::byte*>(block.data_ptr()) + offset, sizes, [block](void*) {}, options);
}

}  // namespace lockstep::comm
