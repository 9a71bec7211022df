// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

// The element type of a tensor. A boolean is a byte; any value but zero means true.
enum class Element : std::uint8_t { f32, f64, f16, bf16, i8, u8, i16, i32, i64, u16, u32, u64, boolean };

enum class Reduction : std::uint8_t { sum, average, product, min, max, band, bor, bxor };

constexpr std::size_t size_of(Element element) {
  switch (element) {
    case Element::i8:
    case Element::u8:
    case Element::boolean:
      return 1;
    case Element::f16:
    case Element::bf16:
    case Element::i16:
    case Element::u16:
      return 2;
    case Element::f32:
    case Element::i32:
    case Element::u32:
      return 4;
    case Element::f64:
    case Element::i64:
    case Element::u64:
      return 8;
  }
  return 0;
}

}  // namespace lockstep::shm
