// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_dicts.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "leaves.h"
#include "serialize/errors.h"

namespace lockstep::ckpt {
namespace {

bool is_tensor(const Value& value) { return value.is<at::Tensor>() || value.is<Parameter>(); }

bool is_tensor_by_name(const Dict::Item& item) { return item.key.is<std::string>() && is_tensor(item.value); }

bool is_tensor_dict(const Value& value) {
  const auto* dict = value.get_if<Dict>();
  return dict != nullptr && !dict->empty() && std::all_of(dict->begin(), dict->end(), is_tensor_by_name);
}

void find_tensor_dicts(const Value& value, const std::string& path, std::vector<std::string>& found) {
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) return;
  for (const auto& [key, item] : *dict) {
    const auto* name = key.get_if<std::string>();
    if (name == nullptr) continue;
    const auto below = path.empty() ? *name : path + "." + *name;
    if (is_tensor_dict(item)) {
      found.push_back(below);
    } else {
      find_tensor_dicts(item, below, found);
    }
  }
}

// The keys to choose from with --key.
std::string advice(const Value& value) {
  std::vector<std::string> found;
  find_tensor_dicts(value, "", found);
  if (found.empty()) return "it has no dict of tensors";
  for (auto& key : found) key = printable(key);
  return fmt::format("choose a dict of tensors with --key: {}", fmt::join(found, ", "));
}

[[noreturn]] void fail(const Checkpoint& checkpoint, const std::string& what) {
  throw_error("{}: {}", checkpoint.file.string(), what);
}

// Keys may contain dots, so at every level the longest match is tried first. AnyValue: Value, const or not.
template <typename AnyValue>
AnyValue* find(AnyValue& value, std::string_view path) {
  auto* dict = value.template get_if<Dict>();
  if (dict == nullptr) return nullptr;
  for (auto end = path.size(); end != std::string_view::npos && end > 0; end = path.rfind('.', end - 1)) {
    auto* item = dict->find(Value(path.substr(0, end)));
    if (item == nullptr) continue;
    if (end == path.size()) return item;
    if (auto* found = find(*item, path.substr(end + 1))) return found;
  }
  return nullptr;
}

[[noreturn]] void refuse_key(const Checkpoint& checkpoint, const std::string& key) {
  fail(checkpoint,
       fmt::format("it has nothing under the key {}; {}", repr(Value(key), 200), advice(checkpoint.value)));
}

std::string describe(const Value& value) { return fmt::format("{} {}", value.type_name(), repr(value, 60)); }

}  // namespace

const Value& value_under(const Checkpoint& checkpoint, const std::optional<std::string>& key) {
  if (!key) return checkpoint.value;
  if (const auto* found = find(checkpoint.value, *key)) return *found;
  refuse_key(checkpoint, *key);
}

void replace_under(Checkpoint& checkpoint, const std::string& key, Value value) {
  auto* found = find(checkpoint.value, key);
  if (found == nullptr) refuse_key(checkpoint, key);
  *found = std::move(value);
}

const Dict& tensors_under(const Checkpoint& checkpoint, const std::optional<std::string>& key) {
  const auto& value = value_under(checkpoint, key);
  const auto where = key ? fmt::format("under {} it", repr(Value(*key), 200)) : std::string("it");
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) {
    fail(checkpoint, fmt::format("{} has {}, not a dict of tensors; {}", where, describe(value),
                                 advice(checkpoint.value)));
  }
  const auto* other = std::find_if_not(dict->begin(), dict->end(), is_tensor_by_name);
  if (other == dict->end()) return *dict;
  if (!other->key.is<std::string>()) {
    fail(checkpoint, fmt::format("{} has a key that is no string: {}; {}", where, describe(other->key),
                                 advice(checkpoint.value)));
  }
  fail(checkpoint, fmt::format("{} is no flat dict of tensors: the entry {} is {}; {}", where,
                               repr(other->key, 200), describe(other->value), advice(checkpoint.value)));
}

}  // namespace lockstep::ckpt
