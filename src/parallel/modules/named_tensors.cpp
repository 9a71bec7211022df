// SPDX-License-Identifier: BSD-3-Clause
#include "modules/named_tensors.h"

#include <algorithm>
#include <fnmatch.h>
#include <numeric>
#include <string_view>

#include <fmt/ranges.h>

#include <lockstep/nn/wrapped_module.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep::modules {
namespace {

constexpr std::size_t kSuggestions = 3;

void add_matches(torch::nn::Module& module, const std::string& prefix, std::string_view pattern,
                 std::vector<NamedModule>& found) {
  const auto dot = pattern.find('.');
  const std::string component(pattern.substr(0, dot));
  for (const auto& child : module.named_children()) {
    if (::fnmatch(component.c_str(), child.key().c_str(), FNM_NOESCAPE) != 0) continue;
    const auto name = prefix + child.key();
    if (dot == std::string_view::npos) {
      found.push_back({name, child.value().get()});
    } else {
      add_matches(*child.value(), name + ".", pattern.substr(dot + 1), found);
    }
  }
}

// Levenshtein's.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const auto replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<NamedModule> matching_modules(torch::nn::Module& root, const std::string& pattern,
                                          const char* caller, std::source_location where) {
  if (pattern.empty()) return {{"", &root}};
  std::vector<NamedModule> found;
  add_matches(root, "", pattern, found);
  if (!found.empty()) return found;
  auto names = root.named_modules("", /*include_self=*/false).keys();
  std::ranges::stable_sort(names, {}, [&](const auto& name) { return edits(name, pattern); });
  names.resize(std::min(names.size(), kSuggestions));
  throw_error<ArgumentError>(
      "{}{}: no module's name matches \"{}\"; the nearest are {}", line_prefix(where), caller, pattern,
      names.empty() ? "none, for the module has no children" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace lockstep::modules

namespace lockstep::nn {

torch::OrderedDict<std::string, at::Tensor> WrapperModule::named_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> once;
  for (auto& item : modules::distinct(Module::named_parameters())) once.insert(item.name, item.tensor);
  return once;
}

std::vector<at::Tensor> WrapperModule::parameters() const { return named_parameters().values(); }

void WrapperModule::require_can_rejoin() const {
  throw_error<ArgumentError>("{} cannot be part of an elastic run yet", name());
}

void WrapperModule::rejoin() { require_can_rejoin(); }

}  // namespace lockstep::nn
