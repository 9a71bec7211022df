// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "serialize/pickle.h"

namespace lockstep::pickle {
bool is_utf8(std::string_view text) {
  // By the length of the form. A smaller number has a shorter form.
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  constexpr std::uint32_t kLast = 0x10ffff;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const auto ones = static_cast<std::size_t>(std::countl_one(first));
    const auto length = std::max<std::size_t>(ones, 1);
    if (ones == 1 || ones >= kLeast.size() || text.size() < length) return false;
    std::uint32_t number = first & (0xffU >> (ones + 1));
    for (const char letter : text.substr(1, length - 1)) {
      const auto byte = static_cast<unsigned char>(letter);
      if ((byte & 0xc0) != 0x80) return false;
      number = (number << 6) | (byte & 0x3fU);
    }
    if (number < kLeast[length] || number > kLast) return false;
    text.remove_prefix(length);
  }
  return true;
}

template <typename Number>
void Writer::raw(Number number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number));
  out_.append(bytes, sizeof(number));
}

Writer::Writer() {
  op(Opcode::proto);
  out_.push_back('\x02');
}

void Writer::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    op(Opcode::bin_int1);
    raw(static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value <= 0xffff) {
    op(Opcode::bin_int2);
    raw(static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    op(Opcode::bin_int);
    raw(static_cast<std::int32_t>(value));
  } else {
    op(Opcode::long1);
    out_.push_back('\x08');
    raw(value);
  }
}

void Writer::big_integer(std::string_view bytes) {
  // Python's weights_only loader knows the short form only.
  if (bytes.size() > 0xff) throw CheckpointError("an int of more than 255 bytes cannot be saved");
  op(Opcode::long1);
  raw(static_cast<std::uint8_t>(bytes.size()));
  out_.append(bytes);
}

void Writer::real(double value) {
  op(Opcode::bin_float);
  raw(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void Writer::text(std::string_view value) {
  if (value.size() > std::numeric_limits<std::uint32_t>::max())
    throw CheckpointError("a string of more than 4 GiB cannot be saved");
  op(Opcode::bin_unicode);
  raw(static_cast<std::uint32_t>(value.size()));
  out_.append(value);
}

void Writer::global(std::string_view module, std::string_view name) {
  std::string full(module);
  full.append("\n").append(name).append("\n");
  const auto known = globals_.find(full);
  if (known != globals_.end()) {
    recall(known->second);
    return;
  }
  op(Opcode::global);
  out_.append(full);
  globals_.emplace(std::move(full), memoize());
}

void Writer::op_with(Opcode short_form, Opcode long_form, std::uint32_t number) {
  if (number <= 0xff) {
    op(short_form);
    raw(static_cast<std::uint8_t>(number));
  } else {
    op(long_form);
    raw(number);
  }
}

std::uint32_t Writer::memoize() {
  op_with(Opcode::bin_put, Opcode::long_bin_put, memo_count_);
  return memo_count_++;
}

std::string Writer::finish() {
  op(Opcode::stop);
  return std::move(out_);
}

}  // namespace lockstep::pickle
