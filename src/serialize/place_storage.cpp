// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/place_storage.h"

#include <ATen/Functions.h>

#include "serialize/storage_bytes.h"

namespace lockstep::serialize {

c10::Storage place_storage(c10::Storage storage, c10::Device device) {
  if (device.is_cpu()) return storage;
  return storage_bytes(storage).to(device).storage();
}

c10::Storage meta_storage(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(at::kMeta))
      .storage();
}

}  // namespace lockstep::serialize
