// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <string_view>
#include <unordered_set>

#include <lockstep/ddp/utils.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

bool fits(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') {
    return fits(text, pattern.substr(1)) || (!text.empty() && fits(text.substr(1), pattern));
  }
  if (text.empty() || (pattern.front() != '?' && pattern.front() != text.front())) return false;
  return fits(text.substr(1), pattern.substr(1));
}

// The name itself or that of a module that it is in.
bool matches(std::string_view name, std::string_view pattern) {
  for (auto end = name.size(); end != std::string_view::npos && end > 0; end = name.rfind('.', end - 1)) {
    if (fits(name.substr(0, end), pattern)) return true;
  }
  return false;
}

void refuse_idle(const torch::OrderedDict<std::string, at::Tensor>& parameters,
                 const std::vector<std::string>& patterns, const char* function) {
  for (const auto& pattern : patterns) {
    const bool used =
        std::ranges::any_of(parameters.keys(), [&](const auto& name) { return matches(name, pattern); });
    if (!used) throw_error<ArgumentError>("{}: no parameter's name matches {}", function, pattern);
  }
}

std::vector<std::string> freeze_where(torch::nn::Module& module, const std::vector<std::string>& patterns,
                                      bool matching, const char* function) {
  const auto parameters = module.named_parameters();
  refuse_idle(parameters, patterns, function);
  // A tied parameter has several names, of which one suffices.
  std::unordered_set<const void*> matched;
  for (const auto& item : parameters) {
    const bool any =
        std::ranges::any_of(patterns, [&](const auto& pattern) { return matches(item.key(), pattern); });
    if (any) matched.insert(item.value().unsafeGetTensorImpl());
  }
  std::vector<std::string> frozen;
  for (const auto& item : parameters) {
    if (matched.contains(item.value().unsafeGetTensorImpl()) != matching) continue;
    item.value().set_requires_grad(false);
    frozen.push_back(item.key());
  }
  return frozen;
}

}  // namespace

std::vector<std::string> freeze(torch::nn::Module& module, const std::vector<std::string>& patterns) {
  return freeze_where(module, patterns, true, "freeze");
}

std::vector<std::string> freeze_all_but(torch::nn::Module& module, const std::vector<std::string>& patterns) {
  return freeze_where(module, patterns, false, "freeze_all_but");
}

}  // namespace lockstep
