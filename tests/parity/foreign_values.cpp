// SPDX-License-Identifier: BSD-3-Clause
#include "parity/foreign_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include "serialize/dtypes.h"

namespace lockstep::testing {
namespace {

std::string real(double number) {
  return std::isnan(number) ? "nan" : fmt::format("{:016x}", std::bit_cast<std::uint64_t>(number));
}

std::string joined(const std::vector<Value>& values) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(described(value));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string of_tensor(const at::Tensor& given) {
  auto tensor = given.detach();
  const auto shape =
      fmt::format("{}{}[{}]", given.requires_grad() ? "grad " : "",
                  serialize::find_dtype(tensor.scalar_type())->name, fmt::join(tensor.sizes(), ", "));
  if (tensor.is_meta()) return shape + ":meta";
  if (tensor.layout() == at::kSparse) {
    return fmt::format("{}:coo {} {}", shape, of_tensor(tensor._indices()), of_tensor(tensor._values()));
  }
  if (tensor.layout() != at::kStrided) return fmt::format("{}:dense {}", shape, of_tensor(tensor.to_dense()));
  tensor = tensor.resolve_conj().resolve_neg().contiguous();
  return shape + ":" + hexed({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
}

std::string of_dict(const Dict& dict) {
  std::vector<std::string> items;
  for (const auto& [key, value] : dict)
    items.push_back(fmt::format("{}: {}", described(key), described(value)));
  const auto text = fmt::format("{}{{{}}}", Value(dict).type_name(), fmt::join(items, ", "));
  return dict.attributes().empty() ? text : text + " with " + of_dict(dict.attributes());
}

std::string of_set(const Set& set) {
  std::vector<std::string> items;
  for (const auto& item : set.items) items.push_back(described(item));
  std::ranges::sort(items);
  return fmt::format("{{{}}}", fmt::join(items, ", "));
}

std::string of_sharded(const ShardedTensor& tensor) {
  if (tensor.local_shards.empty()) {
    return fmt::format("no part of [{}] {}", fmt::join(tensor.size, ", "),
                       serialize::find_dtype(tensor.dtype.value())->name);
  }
  std::vector<std::string> parts;
  for (const auto& shard : tensor.local_shards) {
    parts.push_back(fmt::format("at [{}] {}", fmt::join(shard.shard_offsets, ", "), of_tensor(shard.tensor)));
  }
  return fmt::format("part of [{}] {}", fmt::join(tensor.size, ", "), fmt::join(parts, " "));
}

struct Describe {
  std::string operator()(None /*value*/) const { return "None"; }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(const BigInteger& value) const { return "int:" + hexed(value.bytes); }
  std::string operator()(double value) const { return "f:" + real(value); }
  std::string operator()(std::complex<double> value) const {
    return "c:" + real(value.real()) + " " + real(value.imag());
  }
  std::string operator()(const std::string& value) const { return "s:" + hexed(value); }
  std::string operator()(const Bytes& value) const {
    return (value.mutable_array ? "B:" : "b:") + hexed(value.data);
  }
  std::string operator()(const at::Tensor& value) const { return of_tensor(value); }
  std::string operator()(const Parameter& value) const {
    return (value.requires_grad ? "parameter " : "constant parameter ") + of_tensor(value.data.detach());
  }
  std::string operator()(const List& value) const { return "[" + joined(value.items) + "]"; }
  std::string operator()(const Tuple& value) const { return "(" + joined(value.items) + ")"; }
  std::string operator()(const Set& value) const { return of_set(value); }
  std::string operator()(const Dict& value) const { return of_dict(value); }
  std::string operator()(const Size& value) const {
    return fmt::format("Size[{}]", fmt::join(value.sizes, ", "));
  }
  std::string operator()(at::ScalarType value) const {
    return fmt::format("dtype:torch.{}", serialize::find_dtype(value)->name);
  }
  std::string operator()(const at::Device& value) const { return "device:" + value.str(); }
  std::string operator()(at::Layout value) const {
    return fmt::format("layout:{}", serialize::layout_name(value));
  }
  std::string operator()(const ShardedTensor& value) const { return of_sharded(value); }
};

}  // namespace

std::string hexed(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string described(const Value& value) { return std::visit(Describe{}, value.variant()); }

}  // namespace lockstep::testing
