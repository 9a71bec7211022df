// SPDX-License-Identifier: BSD-3-Clause
#include "data/python_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep::data {
namespace {

constexpr unsigned kFirstOfTwo = 0xc2;
constexpr unsigned kFirstOfThree = 0xe0;
constexpr unsigned kFirstOfFour = 0xf0;
constexpr unsigned kLastFirst = 0xf4;

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

std::size_t length_by_first_byte(unsigned first) {
  if (first < kFirstOfTwo || first > kLastFirst) return 1;
  if (first < kFirstOfThree) return 2;
  return first < kFirstOfFour ? 3 : 4;
}

bool is_code_point_of(std::uint32_t point, std::size_t length) {
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  if (length == 3) return point >= 0x800 && !surrogate;
  return length == 2 || (point >= 0x10000 && point <= 0x10ffff);
}

// Removes the first code point.
std::uint32_t take_code_point(std::string_view& text) {
  const auto first = byte_at(text, 0);
  const auto length = length_by_first_byte(first);
  const auto escaped = first < 0x80 ? first : 0xdc00 + first;
  std::uint32_t point = length == 1 ? escaped : first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const bool continues = i < text.size() && (byte_at(text, i) & 0xc0) == 0x80;
    if (!continues) {
      text.remove_prefix(1);
      return escaped;
    }
    point = point << 6 | (byte_at(text, i) & 0x3f);
  }
  if (length > 1 && !is_code_point_of(point, length)) {
    text.remove_prefix(1);
    return escaped;
  }
  text.remove_prefix(length);
  return point;
}

}  // namespace

bool before_in_python(std::string_view left, std::string_view right) {
  const auto [a, b] = std::ranges::mismatch(left, right);
  const auto is_ascii = [](const char* at, std::string_view text) {
    return at == text.end() || (*at & 0x80) == 0;
  };
  if (is_ascii(a, left) && is_ascii(b, right)) return left < right;
  while (!left.empty() && !right.empty()) {
    const auto first = take_code_point(left);
    const auto second = take_code_point(right);
    if (first != second) return first < second;
  }
  return left.empty() && !right.empty();
}

}  // namespace lockstep::data
