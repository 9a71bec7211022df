// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/storage.h"

#include <algorithm>

#include <ATen/Functions.h>

namespace lockstep::serialize {

at::Tensor storage_bytes(const c10::Storage& storage) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
}

std::span<const std::byte> bytes_of(const c10::Storage& storage) {
  return {static_cast<const std::byte*>(storage.data()), storage.nbytes()};
}

c10::Storage place_storage(c10::Storage storage, c10::Device device) {
  if (device.is_cpu()) return storage;
  return storage_bytes(storage).to(device).storage();
}

c10::Storage meta_storage(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(at::kMeta))
      .storage();
}

void swap_byte_order(const c10::Storage& storage, c10::ScalarType dtype) {
  auto size = c10::elementSize(dtype);
  if (c10::isComplexType(dtype)) size /= 2;
  if (size < 2) return;
  auto* bytes = static_cast<char*>(storage.mutable_data());
  for (std::size_t at = 0; at + size <= storage.nbytes(); at += size)
    std::reverse(bytes + at, bytes + at + size);
}

}  // namespace lockstep::serialize
