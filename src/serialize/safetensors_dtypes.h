// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace lockstep::safetensors {

/// What the format calls a dtype, and its place in a file: tensors of lower rank come first.
struct Dtype {
  at::ScalarType type;
  std::string_view name;
};

/// nullptr for a dtype that the format does not have, or that PyTorch does not.
const Dtype* find_dtype(at::ScalarType type);
const Dtype* dtype_named(std::string_view name);  ///< "F32"
std::size_t rank_of(const Dtype& dtype);

}  // namespace lockstep::safetensors
