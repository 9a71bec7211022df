// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/numpy_scalar.h"

#include <cstring>

#include <c10/util/Half.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::serialize {
namespace {

template <typename Number>
Number number(std::string_view data) {
  if (data.size() != sizeof(Number))
    throw CheckpointError("the checkpoint has a numpy scalar of a wrong length");
  Number value{};
  std::memcpy(&value, data.data(), sizeof(value));
  return value;
}

}  // namespace

Value numpy_scalar(std::string_view type, std::string_view order, std::string_view data) {
  if (order != ">") {
    if (type == "f8") return number<double>(data);
    if (type == "f4") return number<float>(data);
    if (type == "f2") return static_cast<double>(number<c10::Half>(data));
    if (type == "i8") return number<std::int64_t>(data);
    if (type == "i4") return number<std::int32_t>(data);
    if (type == "i2") return number<std::int16_t>(data);
    if (type == "i1") return number<std::int8_t>(data);
    if (type == "u8") return number<std::uint64_t>(data);
    if (type == "u4") return number<std::uint32_t>(data);
    if (type == "u2") return number<std::uint16_t>(data);
    if (type == "u1") return number<std::uint8_t>(data);
    if (type == "b1") return number<std::uint8_t>(data) != 0;
    if (type == "c16") return number<std::complex<double>>(data);
  }
  throw CheckpointError(fmt::format(
      "the checkpoint has a numpy scalar of type {}{}, which is none of the plain numbers", order, type));
}

}  // namespace lockstep::serialize
