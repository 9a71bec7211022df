// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {

// Read-only access to environment variables of this process, or to a map for tests. An empty variable counts
// as unset.
class Env {
 public:
  // Reads this process's environment at every call.
  Env() = default;
  // Reads `values` only.
  explicit Env(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  std::optional<std::string> get(const std::string& name) const;
  bool has(const std::string& name) const { return get(name).has_value(); }

  // The variable as a decimal integer. Throws ArgumentError naming variable and value if it is not one.
  std::optional<std::int64_t> get_int(const std::string& name) const;

 private:
  std::optional<std::map<std::string, std::string>> values_;
};

inline std::optional<std::string> Env::get(const std::string& name) const {
  if (values_) {
    const auto found = values_->find(name);
    if (found == values_->end() || found->second.empty()) return std::nullopt;
    return found->second;
  }
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

inline std::optional<std::int64_t> Env::get_int(const std::string& name) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<std::int64_t>(*text);
  if (!value) throw_error<ArgumentError>("environment variable {}=\"{}\" is not a whole number", name, *text);
  return value;
}

}  // namespace lockstep
