// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/dtypes.h"

#include <algorithm>
#include <array>

namespace lockstep::serialize {
namespace {

constexpr std::array kDtypes = {
    Dtype{at::kDouble, "float64", "DoubleStorage"},
    Dtype{at::kFloat, "float32", "FloatStorage"},
    Dtype{at::kHalf, "float16", "HalfStorage"},
    Dtype{at::kBFloat16, "bfloat16", "BFloat16Storage"},
    Dtype{at::kLong, "int64", "LongStorage"},
    Dtype{at::kInt, "int32", "IntStorage"},
    Dtype{at::kShort, "int16", "ShortStorage"},
    Dtype{at::kChar, "int8", "CharStorage"},
    Dtype{at::kByte, "uint8", "ByteStorage"},
    Dtype{at::kBool, "bool", "BoolStorage"},
    Dtype{at::kComplexDouble, "complex128", "ComplexDoubleStorage"},
    Dtype{at::kComplexFloat, "complex64", "ComplexFloatStorage"},
    Dtype{at::kComplexHalf, "complex32", ""},
    Dtype{at::kUInt16, "uint16", ""},
    Dtype{at::kUInt32, "uint32", ""},
    Dtype{at::kUInt64, "uint64", ""},
    Dtype{at::kFloat8_e5m2, "float8_e5m2", ""},
    Dtype{at::kFloat8_e4m3fn, "float8_e4m3fn", ""},
    Dtype{at::kFloat8_e5m2fnuz, "float8_e5m2fnuz", ""},
    Dtype{at::kFloat8_e4m3fnuz, "float8_e4m3fnuz", ""},
    Dtype{at::kFloat8_e8m0fnu, "float8_e8m0fnu", ""},
    Dtype{at::kFloat4_e2m1fn_x2, "float4_e2m1fn_x2", ""},
};

const Dtype* pointer_to(decltype(kDtypes)::const_iterator found) {
  return found == kDtypes.end() ? nullptr : &*found;
}

}  // namespace

const Dtype* find_dtype(at::ScalarType type) {
  return pointer_to(std::ranges::find(kDtypes, type, &Dtype::type));
}

const Dtype* dtype_named(std::string_view name) {
  return pointer_to(std::ranges::find(kDtypes, name, &Dtype::name));
}

const Dtype* dtype_of_storage_class(std::string_view name) {
  if (name.empty()) return nullptr;
  return pointer_to(std::ranges::find(kDtypes, name, &Dtype::storage_class));
}

std::optional<at::ScalarType> dtype_of(const ShardedTensor& tensor) {
  if (tensor.dtype) return tensor.dtype;
  for (const auto& shard : tensor.local_shards) {
    if (shard.tensor.defined()) return shard.tensor.scalar_type();
  }
  return std::nullopt;
}

}  // namespace lockstep::serialize
