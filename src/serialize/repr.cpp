// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/ranges.h>

#include <lockstep/serialize/value.h>

#include "serialize/dtypes.h"

namespace lockstep {
namespace {

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

std::string repr(const Value& value, std::size_t max_length) { return Printer(max_length).print(value); }

}  // namespace lockstep
