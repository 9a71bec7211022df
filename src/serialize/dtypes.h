// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

#include <lockstep/serialize/sharded_tensor.h>

namespace lockstep::serialize {

/// What Python calls a dtype, as in torch.float32, and the class of storages that pickles name for it; empty
/// for the newer ones, which are pickled as an untyped storage and a dtype.
struct Dtype {
  at::ScalarType type;
  std::string_view name;
  std::string_view storage_class;
};

/// nullptr for a dtype that checkpoints cannot hold, quantized ones among them.
const Dtype* find_dtype(at::ScalarType type);
const Dtype* dtype_named(std::string_view name);             ///< "float32"
const Dtype* dtype_of_storage_class(std::string_view name);  ///< "FloatStorage"

/// What is given, or that of the first part; nullopt where there is neither.
std::optional<at::ScalarType> dtype_of(const ShardedTensor& tensor);

}  // namespace lockstep::serialize
