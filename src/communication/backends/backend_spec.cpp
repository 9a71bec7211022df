// SPDX-License-Identifier: BSD-3-Clause
#include "backends/backend_spec.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "base/throw_error.h"

namespace lockstep::backends {

bool is_for_gpus(const std::string& name) { return name == "nccl"; }

std::string device_type_name(c10::DeviceType device) { return c10::DeviceTypeName(device, true); }

BackendSpec BackendSpec::parse(const std::string& text) {
  if (text.empty() || text == "auto") return {};
  if (text.find(':') == std::string::npos) return BackendSpec(text);
  std::vector<std::pair<std::string, std::string>> entries;
  std::istringstream stream(text);
  for (std::string entry; std::getline(stream, entry, ',');) {
    const auto colon = entry.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == entry.size()) {
      throw_error<ArgumentError>(
          "backend \"{}\": \"{}\" is not of the form device:backend, as in \"cpu:gloo,cuda:nccl\"", text,
          entry);
    }
    const auto device = entry.substr(0, colon);
    if (std::ranges::find(entries, device, &std::pair<std::string, std::string>::first) != entries.end()) {
      throw_error<ArgumentError>("backend \"{}\" names two backends for {} tensors", text, device);
    }
    entries.emplace_back(device, entry.substr(colon + 1));
  }
  return BackendSpec(std::move(entries));
}

std::optional<std::string> BackendSpec::find(c10::DeviceType device) const {
  for (const auto& [type, name] : entries_) {
    if (type == device_type_name(device)) return name;
  }
  return std::nullopt;
}

std::vector<std::string> BackendSpec::names() const {
  std::vector<std::string> names;
  if (!name_.empty()) names.push_back(name_);
  for (const auto& [type, name] : entries_) names.push_back(name);
  return names;
}

bool BackendSpec::contains(const std::string& name) const {
  const auto all = names();
  return std::ranges::find(all, name) != all.end();
}

bool BackendSpec::is_for_cpu_only() const {
  if (has_entries()) return entries_.size() == 1 && find(c10::kCPU);
  return !is_auto() && name_ != "fake" && !is_for_gpus(name_);
}

std::string BackendSpec::text() const {
  if (!has_entries()) return is_auto() ? "auto" : name_;
  std::string text;
  for (const auto& [type, name] : entries_)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", type, name);
  return text;
}

}  // namespace lockstep::backends
