// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/DeviceType.h>

namespace lockstep::backends {

// What PyTorch writes "cpu:gloo,cuda:nccl": a backend for each kind of device.
class BackendList {
 public:
  // Throws ArgumentError naming the entry that is not of that form.
  static BackendList parse(const std::string& text);
  explicit BackendList(std::vector<std::pair<std::string, std::string>> entries)
      : entries_(std::move(entries)) {}

  // The name for a kind of device, or nullopt.
  std::optional<std::string> find(c10::DeviceType device) const;
  std::vector<std::string> names() const;
  std::string text() const;

 private:
  std::vector<std::pair<std::string, std::string>> entries_;  // "cpu", "gloo"
};

inline bool is_list(const std::string& text) { return text.find(':') != std::string::npos; }

// "cpu", "cuda"
std::string kind_name(c10::DeviceType device);

}  // namespace lockstep::backends
