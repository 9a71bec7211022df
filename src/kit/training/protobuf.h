// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::training {

// A message in the wire format of protocol buffers. Fields are appended in the order of the calls.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, std::int64_t value);  // int32, int64, bool and enumerations
  ProtoMessage& float32(int field, float value);
  ProtoMessage& float64(int field, double value);
  ProtoMessage& float64s(int field, std::span<const double> values);  // repeated, packed
  ProtoMessage& text(int field, std::string_view value);              // string and bytes
  ProtoMessage& message(int field, const ProtoMessage& value) { return text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value);
  void key(int field, int wire_type);

  std::string bytes_;
};

// The bytes of a number in little-endian order, as this format and record files have them.
template <typename Number>
std::string_view little_endian(const Number& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace lockstep::training
