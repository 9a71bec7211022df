// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/value.h>

namespace lockstep {
namespace {

std::string_view dict_name(DictKind kind) {
  switch (kind) {
    case DictKind::dict:
      return "dict";
    case DictKind::ordered_dict:
      return "OrderedDict";
    case DictKind::counter:
      return "Counter";
  }
  return "dict";
}

struct TypeName {
  std::string_view operator()(None) const { return "NoneType"; }
  std::string_view operator()(bool) const { return "bool"; }
  std::string_view operator()(std::int64_t) const { return "int"; }
  std::string_view operator()(const BigInteger&) const { return "int"; }
  std::string_view operator()(double) const { return "float"; }
  std::string_view operator()(const std::complex<double>&) const { return "complex"; }
  std::string_view operator()(const std::string&) const { return "str"; }
  std::string_view operator()(const Bytes& bytes) const {
    return bytes.mutable_array ? "bytearray" : "bytes";
  }
  std::string_view operator()(const at::Tensor&) const { return "Tensor"; }
  std::string_view operator()(const Parameter&) const { return "Parameter"; }
  std::string_view operator()(const List&) const { return "list"; }
  std::string_view operator()(const Tuple&) const { return "tuple"; }
  std::string_view operator()(const Set&) const { return "set"; }
  std::string_view operator()(const Dict& dict) const { return dict_name(dict.kind()); }
  std::string_view operator()(const Size&) const { return "torch.Size"; }
  std::string_view operator()(at::ScalarType) const { return "torch.dtype"; }
  std::string_view operator()(const at::Device&) const { return "torch.device"; }
  std::string_view operator()(at::Layout) const { return "torch.layout"; }
  std::string_view operator()(const ShardedTensor&) const { return "ShardedTensor"; }
};

[[noreturn]] void refuse(const Value& value, std::string_view wanted) {
  throw CheckpointError(
      fmt::format("expected {}, but the checkpoint has {} {}", wanted, value.type_name(), repr(value, 100)));
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

std::string_view Value::type_name() const { return std::visit(TypeName{}, variant_); }

}  // namespace lockstep
