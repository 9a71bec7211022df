// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

using ByteSpan = std::span<const std::uint8_t>;

// The bytes of a contiguous uint8 tensor.
inline ByteSpan as_bytes(const at::Tensor& bytes) {
  return {bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())};
}

}  // namespace lockstep::data
