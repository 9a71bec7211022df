// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/dtypes.h"

#include <algorithm>
#include <array>

#include "base/throw_error.h"

namespace lockstep::serialize {
namespace {

// In the order in which the Python package writes safetensors files, followed by those that they do not have.
constexpr std::array kDtypes = {
    Dtype{at::kUInt64, "uint64", "", "U64"},
    Dtype{at::kLong, "int64", "LongStorage", "I64"},
    Dtype{at::kDouble, "float64", "DoubleStorage", "F64"},
    Dtype{at::kComplexFloat, "complex64", "ComplexFloatStorage", "C64"},
    Dtype{at::kFloat, "float32", "FloatStorage", "F32"},
    Dtype{at::kUInt32, "uint32", "", "U32"},
    Dtype{at::kInt, "int32", "IntStorage", "I32"},
    Dtype{at::kBFloat16, "bfloat16", "BFloat16Storage", "BF16"},
    Dtype{at::kHalf, "float16", "HalfStorage", "F16"},
    Dtype{at::kUInt16, "uint16", "", "U16"},
    Dtype{at::kShort, "int16", "ShortStorage", "I16"},
    Dtype{at::kFloat8_e5m2fnuz, "float8_e5m2fnuz", "", "F8_E5M2FNUZ"},
    Dtype{at::kFloat8_e4m3fnuz, "float8_e4m3fnuz", "", "F8_E4M3FNUZ"},
    Dtype{at::kFloat8_e8m0fnu, "float8_e8m0fnu", "", "F8_E8M0"},
    Dtype{at::kFloat8_e4m3fn, "float8_e4m3fn", "", "F8_E4M3"},
    Dtype{at::kFloat8_e5m2, "float8_e5m2", "", "F8_E5M2"},
    Dtype{at::kChar, "int8", "CharStorage", "I8"},
    Dtype{at::kByte, "uint8", "ByteStorage", "U8"},
    Dtype{at::kBool, "bool", "BoolStorage", "BOOL"},
    Dtype{at::kComplexDouble, "complex128", "ComplexDoubleStorage", ""},
    Dtype{at::kComplexHalf, "complex32", "", ""},
    Dtype{at::kFloat4_e2m1fn_x2, "float4_e2m1fn_x2", "", ""},
};

struct NamedLayout {
  at::Layout layout;
  std::string_view name;
};

constexpr std::array kLayouts = {
    NamedLayout{at::Layout::Strided, "torch.strided"},
    NamedLayout{at::Layout::Sparse, "torch.sparse_coo"},
    NamedLayout{at::Layout::SparseCsr, "torch.sparse_csr"},
    NamedLayout{at::Layout::SparseCsc, "torch.sparse_csc"},
    NamedLayout{at::Layout::SparseBsr, "torch.sparse_bsr"},
    NamedLayout{at::Layout::SparseBsc, "torch.sparse_bsc"},
    NamedLayout{at::Layout::Mkldnn, "torch._mkldnn"},
};

template <typename Key>
const Dtype* find(const Key& key, Key Dtype::*field) {
  const auto* found = std::ranges::find(kDtypes, key, field);
  return found == kDtypes.end() ? nullptr : &*found;
}

const Dtype* find_name(std::string_view name, std::string_view Dtype::*field) {
  return name.empty() ? nullptr : find(name, field);
}

}  // namespace

const Dtype* find_dtype(at::ScalarType type) { return find(type, &Dtype::type); }
const Dtype* dtype_named(std::string_view name) { return find_name(name, &Dtype::name); }
const Dtype* dtype_of_storage_class(std::string_view name) { return find_name(name, &Dtype::storage_class); }
const Dtype* safetensors_dtype(std::string_view name) { return find_name(name, &Dtype::safetensors); }

std::optional<at::ScalarType> dtype_of(const ShardedTensor& tensor) {
  if (tensor.dtype) return tensor.dtype;
  for (const auto& shard : tensor.local_shards) {
    if (shard.tensor.defined()) return shard.tensor.scalar_type();
  }
  return std::nullopt;
}

std::vector<at::Tensor> sparse_parts(const at::Tensor& tensor) {
  const auto layout = tensor.layout();
  if (layout == at::kSparse) return {tensor._indices(), tensor._values()};
  if (layout == at::kSparseCsr || layout == at::kSparseBsr)
    return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
  if (layout == at::kMkldnn) return {tensor.to_dense()};
  return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
}

at::Layout layout_named(std::string_view name) {
  const auto found = std::ranges::find(kLayouts, name, &NamedLayout::name);
  if (found != kLayouts.end()) return found->layout;
  throw_error<CheckpointError>("the checkpoint names an unknown layout: {}", name);
}

std::string_view layout_name(at::Layout layout) {
  const auto found = std::ranges::find(kLayouts, layout, &NamedLayout::layout);
  if (found != kLayouts.end()) return found->name;
  throw_error<CheckpointError>("layout {} cannot be saved", static_cast<int>(layout));
}

}  // namespace lockstep::serialize
