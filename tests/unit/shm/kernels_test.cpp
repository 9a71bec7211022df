// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::shm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Element kElements[] = {Element::f32, Element::f64, Element::f16,    Element::bf16, Element::i8,
                                 Element::u8,  Element::i16, Element::i32,    Element::i64,  Element::u16,
                                 Element::u32, Element::u64, Element::boolean};
constexpr Reduction kReductions[] = {Reduction::sum, Reduction::average, Reduction::product, Reduction::min,
                                     Reduction::max, Reduction::band,    Reduction::bor,     Reduction::bxor};

std::vector<InstructionSet> sets_here() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(best_instruction_set()); ++set)
    sets.push_back(static_cast<InstructionSet>(set));
  return sets;
}

template <class T>
T get(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

// By definition of the formats, in double, one bit at a time.
double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double brain_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

// The format's number nearest to `value`, the even one of two that are as near; found by bisection.
template <class Value>
std::uint16_t nearest(float value, std::uint16_t infinity, Value value_of) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint16_t below = 0;
  std::uint16_t above = infinity;
  while (above - below > 1) {
    const auto middle = static_cast<std::uint16_t>((below + above) / 2);
    (value_of(middle) <= magnitude ? below : above) = middle;
  }
  // Infinity is at the position of the next number.
  const double step =
      value_of(static_cast<std::uint16_t>(infinity - 1)) - value_of(static_cast<std::uint16_t>(infinity - 2));
  const double top =
      above == infinity ? value_of(static_cast<std::uint16_t>(infinity - 1)) + step : value_of(above);
  const double low = value_of(below);
  if (magnitude - low > top - magnitude || (magnitude - low == top - magnitude && below % 2 == 1))
    below = above;
  return below | sign;
}

TEST(Kernels, EveryHalfAndBFloat16RoundTrips) {
  for (const auto set : sets_here()) {
    for (const auto element : {Element::f16, Element::bf16}) {
      std::vector<std::uint16_t> all(65536);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
      std::vector<std::uint16_t> result(all.size());
      void* out = result.data();
      const void* in = all.data();
      reduce_kernel(element, Reduction::max, set)(&out, 1, &in, 1, all.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const double value = element == Element::f16 ? half_value(all[i]) : brain_value(all[i]);
        const double back = element == Element::f16 ? half_value(result[i]) : brain_value(result[i]);
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(back)) << i;
        } else {
          ASSERT_EQ(all[i], result[i]) << i;
        }
      }
    }
  }
}

TEST(Kernels, SumsAreRoundedOnceToTheNearestEven) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> a(20'000);
  std::vector<std::uint16_t> b(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::uint16_t>(random());
    b[i] = static_cast<std::uint16_t>(i % 3 == 0 ? a[i] ^ (random() % 64) : random());
  }
  for (const auto set : sets_here()) {
    for (const auto element : {Element::f16, Element::bf16}) {
      const bool half = element == Element::f16;
      const auto value_of = [&](std::uint16_t bits) { return half ? half_value(bits) : brain_value(bits); };
      std::vector<std::uint16_t> sum(a.size());
      void* out = sum.data();
      const void* in[] = {a.data(), b.data()};
      reduce_kernel(element, Reduction::sum, set)(&out, 1, in, 2, a.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        const float exact = static_cast<float>(value_of(a[i])) + static_cast<float>(value_of(b[i]));
        if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(value_of(sum[i])));
        } else {
          ASSERT_EQ(sum[i], nearest(exact, half ? 0x7C00 : 0x7F80, value_of)) << a[i] << ' ' << b[i];
        }
      }
    }
  }
}

template <class T>
T reduced(Reduction reduction, const std::vector<T>& values) {
  T result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const T next = values[i];
    switch (reduction) {
      case Reduction::sum:
      case Reduction::average:
        if constexpr (std::is_floating_point_v<T>) {
          result = result + next;
        } else {
          result = static_cast<T>(static_cast<std::uint64_t>(result) + static_cast<std::uint64_t>(next));
        }
        break;
      case Reduction::product:
        if constexpr (std::is_floating_point_v<T>) {
          result = result * next;
        } else {
          result = static_cast<T>(static_cast<std::uint64_t>(result) * static_cast<std::uint64_t>(next));
        }
        break;
      case Reduction::min:
        result = result < next || result != result ? result : next;
        break;
      case Reduction::max:
        result = result > next || result != result ? result : next;
        break;
      default:
        if constexpr (!std::is_floating_point_v<T>) {
          result = reduction == Reduction::band  ? static_cast<T>(result & next)
                   : reduction == Reduction::bor ? static_cast<T>(result | next)
                                                 : static_cast<T>(result ^ next);
        }
    }
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (reduction == Reduction::average) result /= static_cast<T>(values.size());
  }
  return result;
}

template <class T>
void check_against_scalars(Element element) {
  std::mt19937_64 random(7);
  for (const auto reduction : kReductions) {
    for (const auto set : sets_here()) {
      const auto kernel = reduce_kernel(element, reduction, set);
      if (kernel == nullptr) continue;
      for (const int ins : {1, 2, 3, 5, 8}) {
        for (const std::size_t count : {0UL, 1UL, 7UL, 64UL, 1000UL, 2051UL}) {
          // Rows start at unaligned addresses, as far as elements allow.
          std::vector<Bytes> rows(static_cast<std::size_t>(ins), Bytes((count + 3) * sizeof(T)));
          for (auto& row : rows) {
            for (std::size_t i = 0; i < count + 3; ++i) {
              const auto bits = random();
              if constexpr (std::is_floating_point_v<T>) {
                const T special[] = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                                     T(-0.0), std::numeric_limits<T>::denorm_min()};
                put<T>(row, i,
                       bits % 16 < 4 ? special[bits % 4]
                                     : static_cast<T>(static_cast<double>(bits % 2001) / 7 - 100));
              } else {
                put<T>(row, i, static_cast<T>(bits));
              }
            }
          }
          std::vector<T> expected;
          for (std::size_t i = 0; i < count; ++i) {
            std::vector<T> values;
            for (const auto& row : rows) values.push_back(get<T>(row, i + 1));
            expected.push_back(reduced(reduction, values));
          }
          // Out of place first, then into all rows at once.
          for (const int outs : {1, ins}) {
            Bytes apart((count + 3) * sizeof(T));
            std::vector<const void*> in;
            std::vector<void*> out;
            for (auto& row : rows) in.push_back(row.data() + sizeof(T));
            if (outs == 1) out.push_back(apart.data() + sizeof(T));
            for (auto& row : rows) {
              if (static_cast<int>(out.size()) < outs) out.push_back(row.data() + sizeof(T));
            }
            kernel(out.data(), outs, in.data(), ins, count);
            for (const auto* place : out) {
              for (std::size_t i = 0; i < count; ++i) {
                T actual;
                std::memcpy(&actual, static_cast<const std::byte*>(place) + i * sizeof(T), sizeof(T));
                const bool same = std::memcmp(&actual, &expected[i], sizeof(T)) == 0;
                ASSERT_TRUE(same || (actual != actual && expected[i] != expected[i]))
                    << "reduction " << static_cast<int>(reduction) << " set " << static_cast<int>(set)
                    << " ins " << ins << " outs " << outs << " count " << count << " at " << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, FloatsMatchScalars) { check_against_scalars<float>(Element::f32); }
TEST(Kernels, DoublesMatchScalars) { check_against_scalars<double>(Element::f64); }
TEST(Kernels, SignedIntegersMatchScalars) {
  check_against_scalars<std::int8_t>(Element::i8);
  check_against_scalars<std::int16_t>(Element::i16);
  check_against_scalars<std::int32_t>(Element::i32);
  check_against_scalars<std::int64_t>(Element::i64);
}
TEST(Kernels, UnsignedIntegersMatchScalars) {
  check_against_scalars<std::uint8_t>(Element::u8);
  check_against_scalars<std::uint16_t>(Element::u16);
  check_against_scalars<std::uint32_t>(Element::u32);
  check_against_scalars<std::uint64_t>(Element::u64);
}

TEST(Kernels, EveryInstructionSetGivesTheSameBits) {
  std::mt19937_64 random(3);
  for (const auto element : kElements) {
    std::vector<std::vector<std::uint64_t>> rows(3, std::vector<std::uint64_t>(999));
    for (auto& row : rows) {
      for (auto& word : row) word = random();
    }
    const auto count = 999 * 8 / size_of(element);
    for (const auto reduction : kReductions) {
      std::vector<Bytes> results;
      for (const auto set : sets_here()) {
        const auto kernel = reduce_kernel(element, reduction, set);
        if (kernel == nullptr) continue;
        Bytes result(999 * 8);
        void* out = result.data();
        const void* in[] = {rows[0].data(), rows[1].data(), rows[2].data()};
        kernel(&out, 1, in, 3, count);
        results.push_back(std::move(result));
      }
      for (const auto& result : results) EXPECT_EQ(result, results.front()) << static_cast<int>(element);
    }
  }
}

TEST(Kernels, AnyByteButZeroIsTrue) {
  const std::uint8_t a[] = {0, 1, 2, 0, 255};
  const std::uint8_t b[] = {0, 0, 1, 7, 255};
  const auto result = [&](Reduction reduction) {
    std::vector<int> bytes;
    std::uint8_t places[5] = {};
    void* out = places;
    const void* in[] = {a, b};
    reduce_kernel(Element::boolean, reduction)(&out, 1, in, 2, 5);
    bytes.assign(std::begin(places), std::end(places));
    return bytes;
  };
  EXPECT_EQ(result(Reduction::sum), (std::vector{0, 1, 1, 1, 1}));
  EXPECT_EQ(result(Reduction::product), (std::vector{0, 0, 1, 0, 1}));
  EXPECT_EQ(result(Reduction::bxor), (std::vector{0, 1, 0, 1, 0}));
}

TEST(Kernels, InvalidKernelsDoNotExist) {
  for (const auto element : {Element::f32, Element::f64, Element::f16, Element::bf16}) {
    for (const auto bits : {Reduction::band, Reduction::bor, Reduction::bxor}) {
      EXPECT_EQ(reduce_kernel(element, bits), nullptr);
    }
  }
  EXPECT_EQ(reduce_kernel(Element::i32, Reduction::average), nullptr);
  EXPECT_EQ(reduce_kernel(Element::boolean, Reduction::average), nullptr);
}

}  // namespace
}  // namespace lockstep::shm
