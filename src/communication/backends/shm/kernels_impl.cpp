// SPDX-License-Identifier: BSD-3-Clause
// The kernels, compiled once for each instruction set: LOCKSTEP_KERNELS is the name of that set's function.
// Everything else has internal linkage, and nothing of the standard library is used: an inline function that
// was compiled here for a newer CPU could be the one that the linker keeps for the whole program.
#include <cstddef>
#include <cstdint>

#include "backends/shm/kernels.h"

#if defined(__clang__)
#define LOCKSTEP_SAME_OR_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_SAME_OR_APART _Pragma("GCC ivdep")
#endif

namespace lockstep::shm {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};
struct Boolean {
  std::uint8_t byte;
};

float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

// How an element is reduced: read as `Wide`, reduced there, written back.
template <class T>
struct Numbers {
  using Wide = T;
  static Wide read(T value) { return value; }
  static T write(Wide value) { return value; }
};

template <>
struct Numbers<Bf16> {
  using Wide = float;
  static Wide read(Bf16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16U); }
  static Bf16 write(Wide value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t nearest = (bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U;
    return {static_cast<std::uint16_t>(value != value ? 0x7FC0U : nearest)};
  }
};

template <>
struct Numbers<F16> {
  using Wide = float;
  static Wide read(F16 value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
    const std::uint32_t shifted = static_cast<std::uint32_t>(value.bits & 0x7FFFU) << 13U;
    const bool special = shifted >= 0x0F800000U;
    // Denormal halves are normal floats: the difference to one of the same exponent field is exact.
    const std::uint32_t small = bits_of(float_of(shifted + 0x38800000U) - float_of(0x38800000U));
    const std::uint32_t finite = shifted < 0x00800000U ? small : shifted + 0x38000000U;
    return float_of(sign | (special ? shifted + 0x70000000U : finite));
  }
  static F16 write(Wide value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = bits & 0x80000000U;
    const std::uint32_t magnitude = bits ^ sign;
    const std::uint32_t too_large = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
    // Adding 0.5 moves the bits of a denormal half to the end of the number, rounded by the addition.
    const std::uint32_t small = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13U & 1U)) >> 13U;
    const std::uint32_t finite = magnitude < 0x38800000U ? small : normal;
    return {static_cast<std::uint16_t>((magnitude >= 0x47800000U ? too_large : finite) | sign >> 16U)};
  }
};

template <>
struct Numbers<Boolean> {
  using Wide = std::uint8_t;
  static Wide read(Boolean value) { return value.byte != 0 ? 1 : 0; }
  static Boolean write(Wide value) { return {value}; }
};

// Wraps instead of overflowing; small types are computed as unsigned numbers that do not become int.
template <class T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<std::int8_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::uint8_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::int16_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::uint16_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::int64_t> {
  using Type = std::uint64_t;
};

struct Sum {
  template <class T>
  static T of(T a, T b) {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Product {
  template <class T>
  static T of(T a, T b) {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
struct Min {
  template <class T>
  static T of(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  static T of(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct And {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

struct AsItIs {
  template <class Wide>
  static Wide of(Wide value, int) {
    return value;
  }
};
struct Divided {
  template <class Wide>
  static Wide of(Wide value, int ins) {
    return value / static_cast<Wide>(ins);
  }
};

// The common case: reads the rows of both ranks and writes both in one pass.
template <class T, class Op, class Finish>
void two_rows(void* const* out, int outs, const void* const* in, std::size_t count) {
  using N = Numbers<T>;
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  T* first = static_cast<T*>(out[0]);
  if (outs == 1) {
    LOCKSTEP_SAME_OR_APART
    for (std::size_t i = 0; i < count; ++i) {
      first[i] = N::write(Finish::of(Op::of(N::read(a[i]), N::read(b[i])), 2));
    }
    return;
  }
  T* second = static_cast<T*>(out[1]);
  LOCKSTEP_SAME_OR_APART
  for (std::size_t i = 0; i < count; ++i) {
    const T value = N::write(Finish::of(Op::of(N::read(a[i]), N::read(b[i])), 2));
    first[i] = value;
    second[i] = value;
  }
}

// Any number of rows, in blocks whose intermediate results stay in the nearest cache.
template <class T, class Op, class Finish>
void any_rows(void* const* out, int outs, const void* const* in, int ins, std::size_t count) {
  using N = Numbers<T>;
  using Wide = typename N::Wide;
  constexpr std::size_t kBlock = 2048 / sizeof(Wide);
  Wide sum[kBlock];
  T result[kBlock];
  for (std::size_t start = 0; start < count; start += kBlock) {
    const std::size_t length = count - start < kBlock ? count - start : kBlock;
    const T* first = static_cast<const T*>(in[0]) + start;
    for (std::size_t i = 0; i < length; ++i) sum[i] = N::read(first[i]);
    for (int row = 1; row < ins; ++row) {
      const T* next = static_cast<const T*>(in[row]) + start;
      for (std::size_t i = 0; i < length; ++i) sum[i] = Op::of(sum[i], N::read(next[i]));
    }
    for (std::size_t i = 0; i < length; ++i) result[i] = N::write(Finish::of(sum[i], ins));
    for (int row = 0; row < outs; ++row) {
      __builtin_memcpy(static_cast<T*>(out[row]) + start, result, length * sizeof(T));
    }
  }
}

template <class T, class Op, class Finish = AsItIs>
void reduce(void* const* out, int outs, const void* const* in, int ins, std::size_t count) {
  if (outs == 0) return;
  if (ins == 2 && outs <= 2) {
    two_rows<T, Op, Finish>(out, outs, in, count);
  } else {
    any_rows<T, Op, Finish>(out, outs, in, ins, count);
  }
}

template <class T>
ReduceKernel of_float(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return reduce<T, Sum>;
    case Reduction::average:
      return reduce<T, Sum, Divided>;
    case Reduction::product:
      return reduce<T, Product>;
    case Reduction::min:
      return reduce<T, Min>;
    case Reduction::max:
      return reduce<T, Max>;
    default:
      return nullptr;
  }
}

template <class T>
ReduceKernel of_integer(Reduction reduction) {
  switch (reduction) {
    case Reduction::average:
      return nullptr;
    case Reduction::band:
      return reduce<T, And>;
    case Reduction::bor:
      return reduce<T, Or>;
    case Reduction::bxor:
      return reduce<T, Xor>;
    default:
      return of_float<T>(reduction);
  }
}

ReduceKernel of_boolean(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::max:
    case Reduction::bor:
      return reduce<Boolean, Or>;
    case Reduction::product:
    case Reduction::min:
    case Reduction::band:
      return reduce<Boolean, And>;
    case Reduction::bxor:
      return reduce<Boolean, Xor>;
    case Reduction::average:
      break;
  }
  return nullptr;
}

}  // namespace

ReduceKernel LOCKSTEP_KERNELS(Element element, Reduction reduction);

ReduceKernel LOCKSTEP_KERNELS(Element element, Reduction reduction) {
  switch (element) {
    case Element::f32:
      return of_float<float>(reduction);
    case Element::f64:
      return of_float<double>(reduction);
    case Element::f16:
      return of_float<F16>(reduction);
    case Element::bf16:
      return of_float<Bf16>(reduction);
    case Element::i8:
      return of_integer<std::int8_t>(reduction);
    case Element::u8:
      return of_integer<std::uint8_t>(reduction);
    case Element::i16:
      return of_integer<std::int16_t>(reduction);
    case Element::i32:
      return of_integer<std::int32_t>(reduction);
    case Element::i64:
      return of_integer<std::int64_t>(reduction);
    case Element::u16:
      return of_integer<std::uint16_t>(reduction);
    case Element::u32:
      return of_integer<std::uint32_t>(reduction);
    case Element::u64:
      return of_integer<std::uint64_t>(reduction);
    case Element::boolean:
      return of_boolean(reduction);
  }
  return nullptr;
}

}  // namespace lockstep::shm
