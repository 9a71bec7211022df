// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// Throws ArgumentError when the indices of get_batch() are no int64 CPU tensor [batch], or one is not in
// 0 .. size - 1.
void check_indices(const at::Tensor& indices, std::int64_t size);

}  // namespace lockstep::data
