// SPDX-License-Identifier: BSD-3-Clause
#include "comm/emulated_reductions.h"

#include <limits>
#include <type_traits>

#include <ATen/ops/empty.h>

namespace lockstep::comm {
namespace {

// As wide as the number. Its own inverse.
template <class Bits>
Bits flip(Bits bits) {
  return bits < 0 ? static_cast<Bits>(bits ^ std::numeric_limits<Bits>::max()) : bits;
}

template <class Bits>
struct Format {
  using Type = Bits;
  Bits infinity;  // the bits of the greatest number
};

template <class Body>
void with_format(c10::ScalarType dtype, const Body& body) {
  switch (dtype) {
    case at::kDouble:
      return body(Format<std::int64_t>{0x7FF0'0000'0000'0000});
    case at::kFloat:
      return body(Format<std::int32_t>{0x7F80'0000});
    case at::kBFloat16:
      return body(Format<std::int16_t>{0x7F80});
    default:
      return body(Format<std::int16_t>{0x7C00});
  }
}

// The type in which Gloo carries the integers.
template <class Bits>
using Carried = std::conditional_t<sizeof(Bits) == 8, std::int64_t, std::int32_t>;

}  // namespace

bool compares_floats(ReduceOp op, const at::Tensor& numbers) {
  const bool compares = op == ReduceOp::MIN || op == ReduceOp::MAX;
  const auto dtype = numbers.scalar_type();
  return compares && numbers.is_cpu() &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16);
}

at::Tensor to_ordered_bits(const at::Tensor& numbers, ReduceOp op) {
  const auto ordered =
      at::empty({numbers.numel()}, numbers.scalar_type() == at::kDouble ? at::kLong : at::kInt);
  with_format(numbers.scalar_type(), [&](auto format) {
    using Bits = typename decltype(format)::Type;
    constexpr auto kMax = std::numeric_limits<Bits>::max();
    const Bits winner = op == ReduceOp::MAX ? kMax : std::numeric_limits<Bits>::min();
    const auto* const in = static_cast<const Bits*>(numbers.const_data_ptr());
    auto* const out = static_cast<Carried<Bits>*>(ordered.data_ptr());
    for (std::int64_t i = 0; i < ordered.numel(); ++i)
      out[i] = (in[i] & kMax) > format.infinity ? winner : flip(in[i]);
  });
  return ordered;
}

void from_ordered_bits(const at::Tensor& ordered, const at::Tensor& numbers) {
  with_format(numbers.scalar_type(), [&](auto format) {
    using Bits = typename decltype(format)::Type;
    const auto* const in = static_cast<const Carried<Bits>*>(ordered.const_data_ptr());
    auto* const out = static_cast<Bits*>(numbers.data_ptr());
    for (std::int64_t i = 0; i < ordered.numel(); ++i) out[i] = flip(static_cast<Bits>(in[i]));
  });
}

}  // namespace lockstep::comm
