// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/byte_order.h"

#include <algorithm>

namespace lockstep::serialize {

void swap_byte_order(const c10::Storage& storage, c10::ScalarType dtype) {
  auto size = c10::elementSize(dtype);
  if (c10::isComplexType(dtype)) size /= 2;
  if (size < 2) return;
  auto* bytes = static_cast<char*>(storage.mutable_data());
  for (std::size_t at = 0; at + size <= storage.nbytes(); at += size)
    std::reverse(bytes + at, bytes + at + size);
}

}  // namespace lockstep::serialize
