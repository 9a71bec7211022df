// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/storage_bytes.h"

#include <ATen/Functions.h>

namespace lockstep::serialize {

at::Tensor storage_bytes(const c10::Storage& storage) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
}

}  // namespace lockstep::serialize
