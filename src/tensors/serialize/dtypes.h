// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <lockstep/serialize/value.h>

// The names of dtypes and layouts in files.
namespace lockstep::serialize {

struct Dtype {
  at::ScalarType type;
  std::string_view name;  // in Python, such as "float32"
  std::string_view
      storage_class;             // in pickles, such as "FloatStorage"; empty: an untyped storage and a dtype
  std::string_view safetensors;  // such as "F32"; empty: not in the format
};

// nullptr for a dtype that checkpoints cannot hold, quantized ones among them.
const Dtype* find_dtype(at::ScalarType type);
const Dtype* dtype_named(std::string_view name);
const Dtype* dtype_of_storage_class(std::string_view name);
const Dtype* safetensors_dtype(std::string_view name);

// The dtype that is set or that of the first part; nullopt without either.
std::optional<at::ScalarType> dtype_of(const ShardedTensor& tensor);

// The tensors that a sparse tensor consists of: indices, then values. It need not be coalesced.
std::vector<at::Tensor> sparse_parts(const at::Tensor& tensor);

// "torch.sparse_coo" and the like. Both throw CheckpointError for an unsupported layout.
at::Layout layout_named(std::string_view name);
std::string_view layout_name(at::Layout layout);

}  // namespace lockstep::serialize
