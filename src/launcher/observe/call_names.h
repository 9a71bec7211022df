// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::observe {

// In the order of CallKind.
inline constexpr std::array<std::string_view, 14> kCallNames{
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "send",
    "recv",
    "barrier",
};

// Whether the tensors of a call may differ in shape from rank to rank.
constexpr bool is_uneven(std::string_view name) {
  return name == "all_gather" || name == "gather" || name == "all_to_all" || name == "all_to_all_single";
}

// is_uneven() in the order of CallKind.
inline constexpr auto kUnevenCalls = [] {
  std::array<bool, kCallNames.size()> uneven{};
  for (std::size_t i = 0; i < uneven.size(); ++i) uneven[i] = is_uneven(kCallNames[i]);
  return uneven;
}();

// In the order of ReduceOp.
inline constexpr std::array<std::string_view, 8> kOpNames{"SUM", "AVG",  "PRODUCT", "MIN",
                                                          "MAX", "BAND", "BOR",     "BXOR"};

// In the order of c10::ScalarType, of which releases of LibTorch know the first ones.
inline constexpr std::array<std::string_view, 47> kDtypeNames{
    "Byte",
    "Char",
    "Short",
    "Int",
    "Long",
    "Half",
    "Float",
    "Double",
    "ComplexHalf",
    "ComplexFloat",
    "ComplexDouble",
    "Bool",
    "QInt8",
    "QUInt8",
    "QInt32",
    "BFloat16",
    "QUInt4x2",
    "QUInt2x4",
    "Bits1x8",
    "Bits2x4",
    "Bits4x2",
    "Bits8",
    "Bits16",
    "Float8_e5m2",
    "Float8_e4m3fn",
    "Float8_e5m2fnuz",
    "Float8_e4m3fnuz",
    "UInt16",
    "UInt32",
    "UInt64",
    "UInt1",
    "UInt2",
    "UInt3",
    "UInt4",
    "UInt5",
    "UInt6",
    "UInt7",
    "Int1",
    "Int2",
    "Int3",
    "Int4",
    "Int5",
    "Int6",
    "Int7",
    "Float8_e8m0fnu",
    "Float4_e2m1fn_x2",
    "BComplex32",
};

// Bytes of an element, in the order of kDtypeNames.
inline constexpr std::array<std::uint8_t, kDtypeNames.size()> kDtypeBytes{
    1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, 1, 1, 1, 1, 1, 1, 2, 1,
    1, 1, 1, 2, 4, 8, 1, 1, 1, 1, 1,  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4};

// 0 for a name that this version does not know.
constexpr std::size_t bytes_of_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDtypeNames.size(); ++i) {
    if (kDtypeNames[i] == name) return kDtypeBytes[i];
  }
  return 0;
}
static_assert(bytes_of_dtype("BFloat16") == 2 && bytes_of_dtype("UInt64") == 8 &&
              bytes_of_dtype("BComplex32") == 4);

// "" for a number that this version does not know.
template <std::size_t count>
constexpr std::string_view name_in(const std::array<std::string_view, count>& names, int number) {
  return number >= 0 && static_cast<std::size_t>(number) < count ? names[static_cast<std::size_t>(number)]
                                                                 : std::string_view();
}

}  // namespace lockstep::observe
