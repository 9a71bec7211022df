// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <ostream>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include <lockstep/serialize/value.h>

#include "base/throw_error.h"
#include "serialize/dtypes.h"

namespace lockstep {
namespace {

// In the order of Value::Variant.
constexpr std::array<std::string_view, std::variant_size_v<Value::Variant>> kTypeNames = {
    "NoneType",   "bool",        "int",          "int",          "float",        "complex", "str",
    "bytes",      "Tensor",      "Parameter",    "list",         "tuple",        "set",     "dict",
    "torch.Size", "torch.dtype", "torch.device", "torch.layout", "ShardedTensor"};

[[noreturn]] void refuse(const Value& value, std::string_view wanted) {
  throw_error<CheckpointError>("expected {}, but the checkpoint has {} {}", wanted, value.type_name(),
                               repr(value, 100));
}

bool equal_strided(const at::Tensor& left, const at::Tensor& right) {
  // torch.equal does not know all of the small types.
  const auto type = left.scalar_type();
  if (type == at::kComplexHalf)
    return at::view_as_real(left.resolve_conj()).equal(at::view_as_real(right.resolve_conj()));
  if (c10::isFloat8Type(type)) return left.to(at::kFloat).equal(right.to(at::kFloat));
  if (type == at::kFloat4_e2m1fn_x2 || c10::isBarebonesUnsignedType(type)) {
    return left.reshape(-1).contiguous().view(at::kByte).equal(
        right.reshape(-1).contiguous().view(at::kByte));
  }
  return left.equal(right);
}

bool equal_tensors(const at::Tensor& left, const at::Tensor& right) {
  if (left.is_same(right)) return true;
  if (!left.defined() || !right.defined()) return false;
  if (left.scalar_type() != right.scalar_type() || left.layout() != right.layout() ||
      left.device() != right.device() || left.sizes() != right.sizes()) {
    return false;
  }
  if (left.is_meta()) return true;
  if (left.layout() == at::kStrided) return equal_strided(left, right);
  const auto parts_of = [](const at::Tensor& sparse) {
    return serialize::sparse_parts(sparse.layout() == at::kSparse ? sparse.coalesce() : sparse);
  };
  return std::ranges::equal(parts_of(left.detach()), parts_of(right.detach()), equal_tensors);
}

bool has_all(const Set& set, const Set& wanted) {
  return std::ranges::all_of(wanted.items, [&](const Value& item) {
    return std::ranges::any_of(set.items, [&](const Value& other) { return equal(item, other); });
  });
}

struct SameContents {
  bool operator()(const at::Tensor& left, const at::Tensor& right) const {
    return equal_tensors(left, right);
  }
  bool operator()(const Parameter& left, const Parameter& right) const {
    return left.requires_grad == right.requires_grad && equal_tensors(left.data, right.data);
  }
  template <std::derived_from<List> Items>
  bool operator()(const Items& left, const Items& right) const {
    return std::ranges::equal(left.items, right.items,
                              [](const Value& a, const Value& b) { return equal(a, b); });
  }
  bool operator()(const Set& left, const Set& right) const {
    return left.items.size() == right.items.size() && has_all(left, right) && has_all(right, left);
  }
  bool operator()(const Dict& left, const Dict& right) const {
    if (left.kind() != right.kind() || left.size() != right.size()) return false;
    // As in Python, the order counts for an OrderedDict only.
    if (left.kind() == DictKind::ordered_dict) {
      return std::equal(
          left.begin(), left.end(), right.begin(), right.end(),
          [](const auto& a, const auto& b) { return equal(a.key, b.key) && equal(a.value, b.value); });
    }
    return std::all_of(left.begin(), left.end(), [&](const Dict::Item& item) {
      const auto* other = right.find(item.key);
      return other != nullptr && equal(item.value, *other);
    });
  }
  bool operator()(const ShardedTensor& left, const ShardedTensor& right) const {
    return left.size == right.size && serialize::dtype_of(left) == serialize::dtype_of(right) &&
           std::ranges::equal(left.local_shards, right.local_shards, [](const auto& a, const auto& b) {
             return a.shard_offsets == b.shard_offsets && equal_tensors(a.tensor, b.tensor);
           });
  }
  template <typename Left, typename Right>
  bool operator()(const Left& left, const Right& right) const {
    if constexpr (std::same_as<Left, Right>) return left == right;
    return false;
  }
};

std::string quoted(std::string_view text, std::size_t room) {
  std::string out = "'";
  for (const char letter : text) {
    if (out.size() > room) break;
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '\'' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += letter;
    }
  }
  return out + "'";
}

std::string dtype_name(at::ScalarType type) {
  const auto* dtype = serialize::find_dtype(type);
  return dtype ? std::string(dtype->name) : std::string(c10::toString(type));
}

std::string tensor_text(std::string_view name, const at::Tensor& tensor) {
  if (!tensor.defined()) return fmt::format("{}(undefined)", name);
  return fmt::format("{}({}, [{}])", name, dtype_name(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// Writes until the text is long enough.
class Printer {
 public:
  explicit Printer(std::size_t max_length) : max_length_(max_length) {}

  std::string print(const Value& value) {
    add(value);
    if (text_.size() > max_length_) {
      text_.erase(max_length_);
      text_ += "...";
    }
    return std::move(text_);
  }

  void operator()(None) { text_ += "None"; }
  void operator()(bool value) { text_ += value ? "True" : "False"; }
  void operator()(std::int64_t value) { text_ += fmt::format("{}", value); }
  void operator()(const BigInteger& value) { text_ += fmt::format("int of {} bytes", value.bytes.size()); }
  void operator()(double value) {
    auto digits = fmt::format("{}", value);
    if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
    text_ += digits;
  }
  void operator()(const std::complex<double>& value) {
    text_ += fmt::format("({}{:+}j)", value.real(), value.imag());
  }
  void operator()(const std::string& value) { text_ += quoted(value, room()); }
  void operator()(const Bytes& value) {
    const auto literal = fmt::format("b{}", quoted(value.data, room()));
    text_ += value.mutable_array ? fmt::format("bytearray({})", literal) : literal;
  }
  void operator()(const at::Tensor& value) { text_ += tensor_text("Tensor", value); }
  void operator()(const Parameter& value) { text_ += tensor_text("Parameter", value.data); }
  void operator()(const List& value) { add_all("[", value.items, "]"); }
  void operator()(const Tuple& value) { add_all("(", value.items, value.items.size() == 1 ? ",)" : ")"); }
  void operator()(const Set& value) {
    if (value.items.empty()) {
      text_ += "set()";
    } else {
      add_all("{", value.items, "}");
    }
  }
  void operator()(const Dict& value) {
    const bool plain = value.kind() == DictKind::dict;
    text_ += plain ? "{" : (value.kind() == DictKind::counter ? "Counter({" : "OrderedDict({");
    bool first = true;
    for (const auto& [key, item] : value) {
      if (full()) break;
      if (!first) text_ += ", ";
      first = false;
      add(key);
      text_ += ": ";
      add(item);
    }
    text_ += plain ? "}" : "})";
  }
  void operator()(const Size& value) {
    text_ += fmt::format("torch.Size([{}])", fmt::join(value.sizes, ", "));
  }
  void operator()(at::ScalarType value) { text_ += "torch." + dtype_name(value); }
  void operator()(const at::Device& value) { text_ += fmt::format("device('{}')", value.str()); }
  void operator()(at::Layout value) { text_ += fmt::format("torch.layout({})", static_cast<int>(value)); }
  void operator()(const ShardedTensor& value) {
    const auto dtype = serialize::dtype_of(value);
    text_ += fmt::format("ShardedTensor({}, [{}], {} shards here)", dtype ? dtype_name(*dtype) : "any dtype",
                         fmt::join(value.size, ", "), value.local_shards.size());
  }

 private:
  bool full() const { return text_.size() > max_length_; }
  std::size_t room() const { return full() ? 0 : max_length_ - text_.size(); }
  void add(const Value& value) { std::visit(*this, value.variant()); }
  void add_all(std::string_view open, const std::vector<Value>& items, std::string_view close) {
    text_ += open;
    for (std::size_t i = 0; i < items.size() && !full(); ++i) {
      if (i > 0) text_ += ", ";
      add(items[i]);
    }
    text_ += close;
  }

  std::size_t max_length_;
  std::string text_;
};

}  // namespace

List::List() = default;
List::List(std::initializer_list<Value> values) : items(values) {}
List::List(std::vector<Value> values) : items(std::move(values)) {}
List::List(const List& other) = default;
List::List(List&& other) noexcept = default;
List& List::operator=(const List& other) = default;
List& List::operator=(List&& other) noexcept = default;
List::~List() = default;

Value::Value(std::initializer_list<Dict::Item> entries) : variant_(Dict(entries)) {}

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

const std::string& Value::as_string() const& {
  if (const auto* value = get_if<std::string>()) return *value;
  refuse(*this, "a str");
}

const at::Tensor& Value::as_tensor() const& {
  if (const auto* value = get_if<at::Tensor>()) return *value;
  if (const auto* value = get_if<Parameter>()) return value->data;
  refuse(*this, "a Tensor");
}

const Dict& Value::as_dict() const& {
  if (const auto* value = get_if<Dict>()) return *value;
  refuse(*this, "a dict");
}

Dict& Value::as_dict() & {
  if (auto* value = get_if<Dict>()) return *value;
  refuse(*this, "a dict");
}

const std::vector<Value>& Value::as_items() const& {
  if (const auto* value = get_if<List>()) return value->items;
  if (const auto* value = get_if<Tuple>()) return value->items;
  if (const auto* value = get_if<Set>()) return value->items;
  refuse(*this, "a list or a tuple");
}

std::int64_t Value::int_within(std::int64_t min, std::uint64_t max) const {
  const auto value = as_int();
  if (std::cmp_less(value, min) || std::cmp_greater(value, max))
    refuse(*this, fmt::format("an int from {} to {}", min, max));
  return value;
}

void Value::refuse_type(std::size_t wanted) const { refuse(*this, fmt::format("a {}", kTypeNames[wanted])); }

const Value& Value::entry(const Value& key) const {
  if (!is<List>() && !is<Tuple>()) return as_dict().at(key);
  const auto& items = as_items();
  const auto count = static_cast<std::int64_t>(items.size());
  const auto index = key.as_int();
  if (index < -count || index >= count)
    throw_error<CheckpointError>("there is no item {} in this {} of {} items", index, type_name(), count);
  return items[static_cast<std::size_t>(index < 0 ? index + count : index)];
}

const Dict::Item* Value::begin() const {
  if (const auto* dict = get_if<Dict>()) return dict->begin();
  throw_error<CheckpointError>(
      "a loop over a value needs a dict, but this is {} {}; loop over its as_items()", type_name(),
      repr(*this, 100));
}

const Dict::Item* Value::end() const { return begin() + as_dict().size(); }

std::string_view Value::type_name() const {
  if (const auto* bytes = get_if<Bytes>(); bytes != nullptr && bytes->mutable_array) return "bytearray";
  if (const auto* dict = get_if<Dict>()) {
    if (dict->kind() == DictKind::ordered_dict) return "OrderedDict";
    if (dict->kind() == DictKind::counter) return "Counter";
  }
  return kTypeNames[variant_.index()];
}

bool equal(const Value& left, const Value& right) {
  return std::visit(SameContents{}, left.variant(), right.variant());
}

std::ostream& operator<<(std::ostream& stream, const Dict& dict) { return stream << Value(dict); }

std::ostream& operator<<(std::ostream& stream, const Value& value) {
  return stream << repr(value, std::numeric_limits<std::size_t>::max());
}

std::string repr(const Value& value, std::size_t max_length) { return Printer(max_length).print(value); }

}  // namespace lockstep
