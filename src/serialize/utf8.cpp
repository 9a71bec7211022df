// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/utf8.h"

#include <cstdint>

namespace lockstep::serialize {
namespace {

struct Form {
  int length;
  std::uint32_t bits;   // of the first byte
  std::uint32_t least;  // a smaller number has a shorter form
};

Form form_of(unsigned char first) {
  if (first < 0x80) return {1, first, 0};
  if ((first & 0xe0) == 0xc0) return {2, first & 0x1fU, 0x80};
  if ((first & 0xf0) == 0xe0) return {3, first & 0x0fU, 0x800};
  if ((first & 0xf8) == 0xf0) return {4, first & 0x07U, 0x10000};
  return {0, 0, 0};
}

}  // namespace

bool is_utf8(std::string_view text) {
  constexpr std::uint32_t last = 0x10ffff;
  while (!text.empty()) {
    const auto [length, bits, least] = form_of(static_cast<unsigned char>(text.front()));
    if (length == 0 || text.size() < static_cast<std::size_t>(length)) return false;
    auto number = bits;
    for (int i = 1; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(text[static_cast<std::size_t>(i)]);
      if ((byte & 0xc0) != 0x80) return false;
      number = (number << 6) | (byte & 0x3fU);
    }
    if (number < least || number > last) return false;
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return true;
}

}  // namespace lockstep::serialize
