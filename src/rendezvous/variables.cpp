// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/variables.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::rendezvous {
namespace {

int to_int(std::int64_t value, const std::string& name) {
  if (value < 0 || value > std::numeric_limits<int>::max()) {
    throw RendezvousError(fmt::format("environment variable {}={} is not a count of ranks", name, value));
  }
  return static_cast<int>(value);
}

}  // namespace

Variables::Variables(const Env& env, std::string source, std::vector<std::string> required,
                     std::vector<std::string> optional)
    : env_(env), source_(std::move(source)), required_(std::move(required)), optional_(std::move(optional)) {}

bool Variables::any() const {
  return std::ranges::any_of(required_, [&](const auto& name) { return env_.has(name); }) ||
         std::ranges::any_of(optional_, [&](const auto& name) { return env_.has(name); });
}

std::string Variables::seen() const {
  std::vector<std::string> texts;
  for (const auto* names : {&required_, &optional_}) {
    for (const auto& name : *names) {
      if (const auto value = env_.get(name)) texts.push_back(name + "=" + *value);
    }
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

void Variables::require_all() const {
  std::vector<std::string> missing;
  for (const auto& name : required_) {
    if (!env_.has(name)) missing.push_back(name);
  }
  if (missing.empty()) return;
  throw RendezvousError(
      fmt::format("{} is incomplete: seen {}; missing {}. Set all of them, or unset them all to "
                  "run as one process; `lockstep run` sets them for you",
                  source_, seen(), fmt::join(missing, ", ")));
}

int Variables::number(const std::string& name) const {
  if (const auto value = optional_number(name)) return *value;
  throw RendezvousError(fmt::format("{}: {} is missing; seen {}", source_, name, seen()));
}

std::optional<int> Variables::optional_number(const std::string& name) const {
  try {
    const auto value = env_.get_int(name);
    return value ? std::optional(to_int(*value, name)) : std::nullopt;
  } catch (const ArgumentError& error) {
    throw RendezvousError(error.what());
  }
}

int checked_port(std::int64_t port, const std::string& name) {
  if (port >= 1 && port <= 65535) return static_cast<int>(port);
  throw RendezvousError(fmt::format("{}={} is not a TCP port; 1 to 65535 are", name, port));
}

}  // namespace lockstep::rendezvous
