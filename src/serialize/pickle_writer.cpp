// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/pickle_writer.h"

#include <bit>
#include <cstring>
#include <limits>

#include <lockstep/base/error.h>

namespace lockstep::pickle {
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

std::uint32_t Writer::memoize() {
  const auto number = memo_count_++;
  if (number <= 0xff) {
    op(Opcode::bin_put);
    raw(static_cast<std::uint8_t>(number));
  } else {
    op(Opcode::long_bin_put);
    raw(number);
  }
  return number;
}

void Writer::recall(std::uint32_t number) {
  if (number <= 0xff) {
    op(Opcode::bin_get);
    raw(static_cast<std::uint8_t>(number));
  } else {
    op(Opcode::long_bin_get);
    raw(number);
  }
}

std::string Writer::finish() {
  op(Opcode::stop);
  return std::move(out_);
}

}  // namespace lockstep::pickle
