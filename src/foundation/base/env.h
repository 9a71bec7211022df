// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

/// Read-only access to environment variables of this process, or to a map for tests. An empty variable counts
/// as unset.
class Env {
 public:
  /// Reads this process's environment at every call.
  Env() = default;
  /// Reads `values` only.
  explicit Env(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return get(name).has_value(); }

  /// The variable as a decimal integer. Throws ArgumentError naming variable and value if it is not one.
  std::optional<std::int64_t> get_int(const std::string& name) const;

 private:
  std::optional<std::map<std::string, std::string>> values_;
};

}  // namespace lockstep
