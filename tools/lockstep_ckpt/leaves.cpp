// SPDX-License-Identifier: BSD-3-Clause
#include "leaves.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

namespace lockstep::ckpt {
namespace {

class Collector {
 public:
  std::vector<Leaf> take() { return std::move(leaves_); }

  void visit(const std::string& path, const Value& value) {
    if (const auto* dict = value.get_if<Dict>(); dict != nullptr && !dict->empty()) {
      for (const auto& [key, item] : *dict) visit(join(path, key_text(key)), item);
    } else if (const auto* items = items_of(value); items != nullptr && !items->empty()) {
      for (std::size_t i = 0; i < items->size(); ++i) visit(join(path, std::to_string(i)), (*items)[i]);
    } else {
      leaves_.push_back({path, &value});
    }
  }

 private:
  static std::string key_text(const Value& key) {
    const auto* text = key.get_if<std::string>();
    return text != nullptr ? *text : repr(key, 200);
  }
  static std::string join(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }
  static const std::vector<Value>* items_of(const Value& value) {
    const bool has_items = value.is<List>() || value.is<Tuple>();
    return has_items ? &value.as_items() : nullptr;
  }

  std::vector<Leaf> leaves_;
};

}  // namespace

const at::Tensor* Leaf::tensor() const {
  if (const auto* parameter = value->get_if<Parameter>()) return &parameter->data;
  return value->get_if<at::Tensor>();
}

std::vector<Leaf> leaves_of(const Value& value) {
  Collector collector;
  collector.visit("", value);
  return collector.take();
}

std::uint64_t bytes_of(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kStrided:
      return static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    case at::kSparse:
      return bytes_of(tensor._values()) + bytes_of(tensor._indices());
    default:
      return bytes_of(tensor.values());
  }
}

std::uint64_t total_bytes(const std::vector<Leaf>& leaves) {
  std::uint64_t bytes = 0;
  for (const auto& leaf : leaves) {
    if (const auto* tensor = leaf.tensor()) bytes += bytes_of(*tensor);
  }
  return bytes;
}

std::string dtype_name(at::ScalarType dtype) {
  constexpr std::string_view module = "torch.";
  return repr(Value(dtype)).substr(module.size());
}

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

std::string printable(const std::string& path) {
  std::string text;
  for (const char letter : path) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool control = byte < 0x20 || byte == 0x7f;
    text += control ? fmt::format("\\x{:02x}", byte) : std::string(1, letter);
  }
  return text;
}

}  // namespace lockstep::ckpt
