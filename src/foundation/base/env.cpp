// SPDX-License-Identifier: BSD-3-Clause
#include "base/env.h"

#include <cstdlib>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {

std::optional<std::string> Env::get(const std::string& name) const {
  if (values_) {
    const auto found = values_->find(name);
    if (found == values_->end() || found->second.empty()) return std::nullopt;
    return found->second;
  }
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> Env::get_int(const std::string& name) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<std::int64_t>(*text);
  if (!value) throw_error<ArgumentError>("environment variable {}=\"{}\" is not a whole number", name, *text);
  return value;
}

}  // namespace lockstep
