// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/DeviceType.h>

namespace lockstep::backends {

// The backend of a run or group: "auto", one name ("gloo"), or a name for each device type
// ("cpu:gloo,cuda:nccl").
class BackendSpec {
 public:
  // Parses InitOptions::backend; "" is "auto". Throws ArgumentError naming the entry that is malformed.
  // Whether the backends exist is checked by resolve_backend().
  static BackendSpec parse(const std::string& text);
  BackendSpec() = default;
  explicit BackendSpec(std::string name) : name_(std::move(name)) {}
  explicit BackendSpec(std::vector<std::pair<std::string, std::string>> entries)
      : entries_(std::move(entries)) {}

  bool is_auto() const { return entries_.empty() && name_.empty(); }
  bool has_entries() const { return !entries_.empty(); }
  // The name without device types; empty with entries.
  const std::string& name() const { return name_; }
  // The entry for a device type.
  std::optional<std::string> find(c10::DeviceType device) const;
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  // Whether it carries tensors on the CPU and no other: "gloo", "shm", "cpu:gloo".
  bool is_for_cpu_only() const;
  std::string text() const;

 private:
  std::string name_;                                          // empty: auto, or entries
  std::vector<std::pair<std::string, std::string>> entries_;  // device type, name
};

// Whether the backend carries tensors of GPUs only. Others carry the CPU's.
bool is_for_gpus(const std::string& name);

// "cpu", "cuda"
std::string device_type_name(c10::DeviceType device);

}  // namespace lockstep::backends
