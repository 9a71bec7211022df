// SPDX-License-Identifier: BSD-3-Clause
#include <array>

#include <lockstep/serialize/value.h>

#include "serialize/errors.h"

namespace lockstep {
namespace {

// In the order of Value::Variant.
constexpr std::array<std::string_view, std::variant_size_v<Value::Variant>> kTypeNames = {
    "NoneType",   "bool",        "int",          "int",          "float",        "complex", "str",
    "bytes",      "Tensor",      "Parameter",    "list",         "tuple",        "set",     "dict",
    "torch.Size", "torch.dtype", "torch.device", "torch.layout", "ShardedTensor"};

[[noreturn]] void refuse(const Value& value, std::string_view wanted) {
  throw_error("expected {}, but the checkpoint has {} {}", wanted, value.type_name(), repr(value, 100));
}

}  // namespace

List::List() = default;
List::List(std::initializer_list<Value> values) : items(values) {}
List::List(std::vector<Value> values) : items(std::move(values)) {}
List::List(const List& other) = default;
List::List(List&& other) noexcept = default;
List& List::operator=(const List& other) = default;
List& List::operator=(List&& other) noexcept = default;
List::~List() = default;

BigInteger Value::big_integer(std::uint64_t value) {
  BigInteger big;
  for (; value != 0; value >>= 8) big.bytes.push_back(static_cast<char>(value & 0xff));
  big.bytes.push_back('\0');  // the sign
  return big;
}

bool Value::as_bool() const {
  if (const auto* value = get_if<bool>()) return *value;
  refuse(*this, "a bool");
}

std::int64_t Value::as_int() const {
  if (const auto* value = get_if<std::int64_t>()) return *value;
  if (const auto* value = get_if<bool>()) return *value ? 1 : 0;
  refuse(*this, "an int of at most 64 bits");
}

double Value::as_double() const {
  if (const auto* value = get_if<double>()) return *value;
  if (const auto* value = get_if<std::int64_t>()) return static_cast<double>(*value);
  if (const auto* value = get_if<bool>()) return *value ? 1 : 0;
  refuse(*this, "a number");
}

const std::string& Value::as_string() const {
  if (const auto* value = get_if<std::string>()) return *value;
  refuse(*this, "a str");
}

const at::Tensor& Value::as_tensor() const {
  if (const auto* value = get_if<at::Tensor>()) return *value;
  if (const auto* value = get_if<Parameter>()) return value->data;
  refuse(*this, "a Tensor");
}

const Dict& Value::as_dict() const {
  if (const auto* value = get_if<Dict>()) return *value;
  refuse(*this, "a dict");
}

Dict& Value::as_dict() {
  if (auto* value = get_if<Dict>()) return *value;
  refuse(*this, "a dict");
}

const std::vector<Value>& Value::as_items() const {
  if (const auto* value = get_if<List>()) return value->items;
  if (const auto* value = get_if<Tuple>()) return value->items;
  if (const auto* value = get_if<Set>()) return value->items;
  refuse(*this, "a list or a tuple");
}

std::string_view Value::type_name() const {
  if (const auto* bytes = get_if<Bytes>(); bytes != nullptr && bytes->mutable_array) return "bytearray";
  if (const auto* dict = get_if<Dict>()) {
    if (dict->kind() == DictKind::ordered_dict) return "OrderedDict";
    if (dict->kind() == DictKind::counter) return "Counter";
  }
  return kTypeNames[variant_.index()];
}

}  // namespace lockstep
