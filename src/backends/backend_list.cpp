// SPDX-License-Identifier: BSD-3-Clause
#include "backends/backend_list.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::backends {

std::string kind_name(c10::DeviceType device) { return c10::DeviceTypeName(device, true); }

BackendList BackendList::parse(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> entries;
  std::istringstream stream(text);
  for (std::string entry; std::getline(stream, entry, ',');) {
    const auto colon = entry.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == entry.size()) {
      throw ArgumentError(fmt::format(
          "backend \"{}\": \"{}\" is not of the form device:backend, as in \"cpu:gloo,cuda:nccl\"", text,
          entry));
    }
    const auto kind = entry.substr(0, colon);
    if (std::ranges::any_of(entries, [&](const auto& other) { return other.first == kind; })) {
      throw ArgumentError(fmt::format("backend \"{}\" names two for {} tensors", text, kind));
    }
    entries.emplace_back(kind, entry.substr(colon + 1));
  }
  return BackendList(std::move(entries));
}

std::optional<std::string> BackendList::find(c10::DeviceType device) const {
  const auto kind = kind_name(device);
  const auto entry = std::ranges::find_if(entries_, [&](const auto& each) { return each.first == kind; });
  return entry == entries_.end() ? std::nullopt : std::optional(entry->second);
}

std::vector<std::string> BackendList::names() const {
  std::vector<std::string> names;
  for (const auto& [kind, name] : entries_) names.push_back(name);
  return names;
}

std::string BackendList::text() const {
  std::string text;
  for (const auto& [kind, name] : entries_) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", kind, name);
  }
  return text;
}

}  // namespace lockstep::backends
