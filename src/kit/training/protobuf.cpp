// SPDX-License-Identifier: BSD-3-Clause
#include "training/protobuf.h"

#include <bit>

namespace lockstep::training {
namespace {

static_assert(std::endian::native == std::endian::little);

// https://protobuf.dev/programming-guides/encoding
constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kLengthDelimited = 2;
constexpr int kFixed32 = 5;

}  // namespace

ProtoMessage& ProtoMessage::integer(int field, std::int64_t value) {
  key(field, kVarint);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::float32(int field, float value) {
  key(field, kFixed32);
  bytes_ += little_endian(value);
  return *this;
}

ProtoMessage& ProtoMessage::float64(int field, double value) {
  key(field, kFixed64);
  bytes_ += little_endian(value);
  return *this;
}

ProtoMessage& ProtoMessage::float64s(int field, std::span<const double> values) {
  return text(field, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

ProtoMessage& ProtoMessage::text(int field, std::string_view value) {
  key(field, kLengthDelimited);
  varint(value.size());
  bytes_ += value;
  return *this;
}

void ProtoMessage::varint(std::uint64_t value) {
  constexpr std::uint64_t more = 0x80;
  for (; value >= more; value >>= 7) bytes_ += static_cast<char>(value | more);
  bytes_ += static_cast<char>(value);
}

void ProtoMessage::key(int field, int wire_type) {
  varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

}  // namespace lockstep::training
