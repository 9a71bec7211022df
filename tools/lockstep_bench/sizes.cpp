// SPDX-License-Identifier: BSD-3-Clause
#include "sizes.h"

#include <cctype>
#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::bench {
namespace {

// 0 for an unknown unit.
std::size_t unit_of(std::string_view letters) {
  if (letters.empty()) return 1;
  if (letters.size() > 1) return 0;
  switch (std::toupper(static_cast<unsigned char>(letters.front()))) {
    case 'K':
      return 1UL << 10U;
    case 'M':
      return 1UL << 20U;
    case 'G':
      return 1UL << 30U;
    default:
      return 0;
  }
}

std::size_t parse_size(const std::string& text) {
  std::size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const auto unit = unit_of({stop, static_cast<std::size_t>(end - stop)});
  const bool fits = unit > 0 && value <= std::numeric_limits<std::int64_t>::max() / unit;
  if (code != std::errc() || value == 0 || !fits) {
    throw ArgumentError(fmt::format(
        "--sizes: \"{}\" is not a size; write a positive integer, optionally with K, M or G", text));
  }
  return value * unit;
}

std::size_t parse_factor(const std::string& text) {
  std::size_t factor = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, factor);
  if (code != std::errc() || stop != end || factor < 2) {
    throw ArgumentError(fmt::format("--sizes: the factor \"{}\" must be a whole number, 2 or more", text));
  }
  return factor;
}

std::vector<std::size_t> parse_range(const std::string& text) {
  const auto parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3) {
    throw ArgumentError(fmt::format("--sizes: \"{}\" is neither first:last nor first:last:factor", text));
  }
  const auto first = parse_size(parts[0]);
  const auto last = parse_size(parts[1]);
  const auto factor = parts.size() == 3 ? parse_factor(parts[2]) : 2;
  if (first > last) {
    throw ArgumentError(fmt::format("--sizes: \"{}\" starts above its end", text));
  }
  std::vector<std::size_t> sizes{first};
  while (sizes.back() <= last / factor) sizes.push_back(sizes.back() * factor);
  return sizes;
}

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  std::string part;
  while (std::getline(stream, part, separator)) parts.push_back(part);
  return parts;
}

std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (const auto& part : split(text, ',')) {
    const auto more = part.find(':') == std::string::npos ? std::vector{parse_size(part)} : parse_range(part);
    sizes.insert(sizes.end(), more.begin(), more.end());
  }
  if (sizes.empty()) throw ArgumentError(fmt::format("--sizes: \"{}\" has no size", text));
  return sizes;
}

}  // namespace lockstep::bench
