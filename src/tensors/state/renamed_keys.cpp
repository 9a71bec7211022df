// SPDX-License-Identifier: BSD-3-Clause
#include "state/renamed_keys.h"

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/throw_error.h"

namespace lockstep {
namespace {

using CompiledRules = std::vector<std::pair<std::regex, std::string>>;

// std::regex recurses for every character.
constexpr std::size_t kLongestKey = 4096;

std::string renamed(const std::string& name, const CompiledRules& rules) {
  if (name.size() > kLongestKey)
    throw_error<CheckpointError>("load_state_dict: a key of {} characters cannot be renamed", name.size());
  try {
    for (const auto& [pattern, replacement] : rules) {
      if (std::regex_search(name, pattern)) return std::regex_replace(name, pattern, replacement);
    }
  } catch (const std::regex_error& error) {
    throw_error<CheckpointError>("load_state_dict: renaming '{}' failed: {}", name, error.what());
  }
  return name;
}

Dict with_prefix(const Dict& state_dict, const std::string& prefix) {
  Dict result(state_dict.kind());
  result.reserve(state_dict.size());
  for (const auto& [key, value] : state_dict) result.set(prefix + key.as_string(), value);
  Dict attributes = state_dict.attributes();
  if (auto* metadata = attributes.find("_metadata"); metadata != nullptr && metadata->is<Dict>()) {
    auto versions = ordered_dict();
    for (const auto& [key, value] : metadata->as_dict()) {
      const auto& name = key.as_string();
      versions.set(name.empty() ? prefix.substr(0, prefix.size() - 1) : prefix + name, value);
    }
    *metadata = std::move(versions);
  }
  result.set_attributes(std::move(attributes));
  return result;
}

Dict renamed(const Dict& dict, const std::vector<RenameRule>& rules) {
  if (rules.empty()) return dict;
  CompiledRules compiled;
  for (const auto& rule : rules) {
    try {
      compiled.emplace_back(std::regex(rule.pattern), rule.replacement);
    } catch (const std::regex_error& error) {
      throw_error<ArgumentError>(
          "load_state_dict: the pattern '{}' of a rename rule is not a regular expression: {}", rule.pattern,
          error.what());
    }
  }
  Dict result(dict.kind());
  result.set_attributes(dict.attributes());
  for (const auto& [key, value] : dict) {
    const auto name = renamed(key.as_string(), compiled);
    if (result.contains(name))
      throw_error<CheckpointError>("load_state_dict: the rename rules give two keys the name '{}'", name);
    result.set(name, value);
  }
  return result;
}

}  // namespace

Dict without_prefix(const Dict& state_dict, const std::string& prefix) {
  const auto without = [&](const Value& key) {
    const auto* name = key.get_if<std::string>();
    return name != nullptr && name->starts_with(prefix) ? Value(name->substr(prefix.size())) : key;
  };
  Dict stripped(state_dict.kind());
  stripped.reserve(state_dict.size());
  for (const auto& [key, value] : state_dict) {
    stripped.set(without(key), value);
  }
  Dict attributes = state_dict.attributes();
  if (auto* metadata = attributes.find("_metadata"); metadata != nullptr && metadata->is<Dict>()) {
    auto versions = ordered_dict();
    const auto bare = prefix.ends_with('.') ? prefix.substr(0, prefix.size() - 1) : prefix;
    for (const auto& [key, value] : metadata->as_dict()) {
      const auto* name = key.get_if<std::string>();
      if (name == nullptr || name->empty()) continue;
      versions.set(*name == bare ? Value("") : without(key), value);
    }
    *metadata = std::move(versions);
  }
  stripped.set_attributes(std::move(attributes));
  return stripped;
}

Dict state::with_keys(Dict dict, const LoadStateDictOptions& options) {
  if (!options.remove_prefix.empty()) dict = without_prefix(dict, options.remove_prefix);
  if (!options.add_prefix.empty()) dict = with_prefix(dict, options.add_prefix);
  return renamed(dict, options.rename);
}

}  // namespace lockstep
