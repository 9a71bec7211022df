// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/safetensors_dtypes.h"

#include <algorithm>
#include <array>

namespace lockstep::safetensors {
namespace {

// In the order in which the Python package writes them: from the widest to the narrowest.
constexpr std::array kDtypes = {
    Dtype{at::kUInt64, "U64"},
    Dtype{at::kLong, "I64"},
    Dtype{at::kDouble, "F64"},
    Dtype{at::kComplexFloat, "C64"},
    Dtype{at::kFloat, "F32"},
    Dtype{at::kUInt32, "U32"},
    Dtype{at::kInt, "I32"},
    Dtype{at::kBFloat16, "BF16"},
    Dtype{at::kHalf, "F16"},
    Dtype{at::kUInt16, "U16"},
    Dtype{at::kShort, "I16"},
    Dtype{at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    Dtype{at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    Dtype{at::kFloat8_e8m0fnu, "F8_E8M0"},
    Dtype{at::kFloat8_e4m3fn, "F8_E4M3"},
    Dtype{at::kFloat8_e5m2, "F8_E5M2"},
    Dtype{at::kChar, "I8"},
    Dtype{at::kByte, "U8"},
    Dtype{at::kBool, "BOOL"},
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

std::size_t rank_of(const Dtype& dtype) { return static_cast<std::size_t>(&dtype - kDtypes.data()); }

}  // namespace lockstep::safetensors
