// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/plain_values.h"

#include <complex>
#include <cstring>
#include <string>

#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include "base/throw_error.h"
#include "serialize/dtypes.h"

namespace lockstep::serialize {
namespace {

template <typename Number>
Number number(std::string_view data) {
  if (data.size() != sizeof(Number))
    throw CheckpointError("the checkpoint has a numpy scalar with a wrong length");
  Number value{};
  std::memcpy(&value, data.data(), sizeof(value));
  return value;
}

Value make_counter(const Value& counts) {
  Dict counter(DictKind::counter);
  for (const auto& [key, count] : counts.as_dict()) counter.set(key, count);
  return counter;
}

Value make_device(const std::vector<Value>& given) {
  auto text = given[0].as_string();
  if (given.size() == 2) text += fmt::format(":{}", given[1].as_int());
  try {
    return at::Device(text);
  } catch (const c10::Error&) {
    throw_error<CheckpointError>("the checkpoint holds a device that this LibTorch does not know: {}", text);
  }
}

// Protocol 2 has no bytes: they travel as text of the letters 0 to 255.
std::string from_latin1(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      bytes.push_back(text[i]);
    } else if ((byte & 0xfe) == 0xc2 && i + 1 < text.size()) {
      ++i;
      bytes.push_back(static_cast<char>((byte << 6) | (text[i] & 0x3f)));
    } else {
      throw CheckpointError("the checkpoint holds a bytes object whose content is not bytes");
    }
  }
  return bytes;
}

Value make_bytes(std::string_view callee, const std::vector<Value>& given) {
  Bytes made{.data = {}, .mutable_array = callee == "builtins bytearray"};
  if (given.empty()) return made;
  if (given.size() == 2 && given[0].is<std::string>()) {
    const auto& encoding = given[1].as_string();
    if (encoding != "latin1" && encoding != "latin-1") refuse_call(callee);
    made.data = from_latin1(given[0].as_string());
    return made;
  }
  const auto* data = given.size() == 1 ? given[0].get_if<Bytes>() : nullptr;
  if (data == nullptr) refuse_call(callee);
  made.data = data->data;
  return made;
}

}  // namespace

void refuse_call(std::string_view callee) {
  throw_error<CheckpointError>("the checkpoint calls {} in a way that PyTorch does not use", callee);
}

Value make_plain(std::string_view callee, const std::vector<Value>& given) {
  const auto count = given.size();
  if (callee == "collections Counter" && count == 1) return make_counter(given[0]);
  if (callee == "builtins set" && count == 1) return Set(given[0].as_items());
  if (callee == "builtins complex" && count == 2)
    return std::complex<double>(given[0].as_double(), given[1].as_double());
  if (callee == "torch Size" && count == 1) return Size{int_list(given[0])};
  if (callee == "torch device" && (count == 1 || count == 2)) return make_device(given);
  if (callee == "torch.serialization _get_layout" && count == 1) return layout_named(given[0].as_string());
  if (callee == "_codecs encode" || callee.starts_with("builtins byte")) return make_bytes(callee, given);
  refuse_call(callee);
}

Value make_integer(std::string_view bytes) {
  // Bytes that only repeat the sign.
  const auto sign = bytes.back() & 0x80 ? '\xff' : '\0';
  while (bytes.size() > 1 && bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0) {
    bytes.remove_suffix(1);
  }
  if (bytes.size() > sizeof(std::int64_t)) return BigInteger{std::string(bytes)};
  std::uint64_t number = (bytes.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
  std::memcpy(&number, bytes.data(), bytes.size());
  return static_cast<std::int64_t>(number);
}

std::vector<std::int64_t> int_list(const Value& value) {
  if (const auto* size = value.get_if<Size>()) return size->sizes;
  std::vector<std::int64_t> list;
  for (const auto& item : value.as_items()) list.push_back(item.as_int());
  return list;
}

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
  throw_error<CheckpointError>("the checkpoint has a numpy scalar of type {}{}, which is not a plain number",
                               order, type);
}

double number_of(const Value& value) {
  if (!value.is<at::Tensor>() && !value.is<Parameter>()) return value.as_double();
  const auto& tensor = value.as_tensor();
  if (tensor.numel() != 1 || tensor.is_complex() || tensor.is_meta())
    throw_error<CheckpointError>("expected a number, but it is {}", repr(value, 100));
  return tensor.item<double>();
}

}  // namespace lockstep::serialize
