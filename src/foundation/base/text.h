// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <charconv>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace lockstep {

// The whole text as a decimal number; nullopt if it is not one or does not fit.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// `words` random numbers of 8 hexadecimal digits each, unique in practice.
inline std::string random_hex(int words) {
  std::random_device source;
  std::string text;
  for (int word = 0; word < words; ++word) text += fmt::format("{:08x}", source());
  return text;
}

// The parts between separators, without a last empty one.
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

}  // namespace lockstep
