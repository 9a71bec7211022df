// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/flatten.h"

#include <algorithm>
#include <set>

#include "base/throw_error.h"

namespace lockstep::distributed_checkpoint {
namespace {

// As Python has it: lists are taken apart for the tensors and dicts in them only.
bool is_leaf(const Value& value) {
  if (value.is<Dict>()) return value.as_dict().empty();
  const auto* list = value.get_if<List>();
  return list == nullptr || std::ranges::all_of(list->items, [](const Value& item) {
           return !item.is<Dict>() && !is_tensor(item) && is_leaf(item);
         });
}

Value step_of_key(const Value& key) { return key.is<std::string>() ? key : Value(repr(key)); }

Tuple longer(const Tuple& path, Value step) {
  auto result = path;
  result.items.push_back(std::move(step));
  return result;
}

// Calls `visit` with each item of a list or a dict and its path. `value` is a Value or a const one.
template <typename AnyValue, typename Visit>
void for_each_item(AnyValue& value, const Tuple& path, const Visit& visit) {
  if (auto* list = value.template get_if<List>()) {
    for (std::size_t i = 0; i < list->items.size(); ++i) visit(list->items[i], longer(path, i));
  } else if (auto* dict = value.template get_if<Dict>()) {
    for (const auto& [key, item] : *dict) visit(*dict->find(key), longer(path, step_of_key(key)));
  }
}

template <typename AnyValue, typename Visit>
void walk(AnyValue& value, const Tuple& path, const Visit& visit) {
  if (is_leaf(value)) return visit(path, value);
  for_each_item(value, path, [&](AnyValue& item, const Tuple& below) { walk(item, below, visit); });
}

// A copy of a dict in which `map(item, path)` replaces each item.
template <typename Map>
Dict mapped(const Dict& dict, const Tuple& path, const Map& map) {
  Dict result(dict.kind());
  for (const auto& [key, item] : dict) result.set(key, map(item, longer(path, step_of_key(key))));
  result.set_attributes(dict.attributes());
  return result;
}

template <typename Map>
List mapped(const List& list, const Tuple& path, const Map& map) {
  List result;
  for (const auto& item : list.items) result.items.push_back(map(item, longer(path, result.items.size())));
  return result;
}

Value structure_below(const Value& value, const Tuple& path) {
  if (is_leaf(value)) return name_of(path);
  if (const auto* list = value.get_if<List>()) return mapped(*list, path, structure_below);
  return mapped(value.as_dict(), path, structure_below);
}

const Value* find_named(const Value& structure, const Tuple& path, const std::string& name) {
  const auto own = name_of(path);
  if (!name.starts_with(own)) return nullptr;
  if (own == name) return structure.is<Dict>() || structure.is<List>() ? &structure : nullptr;
  const Value* found = nullptr;
  for_each_item(structure, path, [&](const Value& item, const Tuple& below) {
    if (found == nullptr) found = find_named(item, below, name);
  });
  return found;
}

Value& below_key(Value& root, const Value& key) {
  if (!root.is<Dict>()) root = Dict();
  return root.as_dict()[key];
}

Value& below_index(Value& root, std::int64_t index) {
  constexpr std::int64_t most = 1 << 20;
  if (index < 0 || index >= most)
    throw_error<CheckpointError>("a path of the metadata has the index {}", index);
  if (!root.is<List>()) root = List();
  auto& items = root.get_if<List>()->items;
  const auto place = static_cast<std::size_t>(index);
  if (items.size() <= place) items.resize(place + 1);
  return items[place];
}

}  // namespace

bool is_tensor(const Value& value) {
  return value.is<at::Tensor>() || value.is<Parameter>() || value.is<ShardedTensor>();
}

std::vector<Leaf> flatten(const Dict& contents) {
  std::vector<Leaf> leaves;
  const auto add = [&](const Tuple& path, const Value& value) { leaves.push_back({path, &value}); };
  for (const auto& [key, item] : contents) walk(item, Tuple{step_of_key(key)}, add);
  return leaves;
}

void for_each_leaf(Dict& contents, const std::function<void(const std::string&, Value&)>& visit) {
  const auto named = [&](const Tuple& path, Value& value) { visit(name_of(path), value); };
  for (const auto& [key, item] : contents) walk(*contents.find(key), Tuple{step_of_key(key)}, named);
}

std::string name_of(const Tuple& path) {
  std::string name;
  for (const auto& step : path.items) {
    if (!name.empty()) name += '.';
    name += step.is<std::string>() ? step.as_string() : fmt::format("{}", step.as_int());
  }
  return name;
}

Value structure_of(const Dict& contents) { return mapped(contents, Tuple{}, structure_below); }

Value fill_structure(const Value& structure, const std::function<Value(const std::string&)>& read) {
  std::set<std::string> used;
  const std::function<Value(const Value&, const Tuple&)> fill = [&](const Value& part,
                                                                    const Tuple& /*path*/) -> Value {
    if (const auto* list = part.get_if<List>()) return mapped(*list, Tuple{}, fill);
    if (const auto* dict = part.get_if<Dict>()) return mapped(*dict, Tuple{}, fill);
    const auto& name = part.as_string();
    if (!used.insert(name).second) throw_error<CheckpointError>("the entry '{}' occurs twice", name);
    return read(name);
  };
  return fill(structure, Tuple{});
}

const Value* find_structure(const Value& structure, const std::string& name) {
  return find_named(structure, Tuple{}, name);
}

void place_at(Value& root, const std::vector<Value>& path, Value value) {
  auto* at = &root;
  for (const auto& step : path) {
    at = step.is<std::string>() ? &below_key(*at, step) : &below_index(*at, step.as_int());
  }
  *at = std::move(value);
}

}  // namespace lockstep::distributed_checkpoint
