// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include <lockstep/transforms/geometry.h>

namespace lockstep::transforms {

// Values as Python prints them.

// "1.0"
inline std::string float_text(double value) {
  auto text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// "1", "1.5"
inline std::string number_text(double value) {
  return value == std::trunc(value) ? fmt::format("{:.0f}", value) : float_text(value);
}

inline std::string_view bool_text(bool value) { return value ? "True" : "False"; }

inline std::string_view text_of(InterpolationMode mode) {
  constexpr std::array<std::string_view, 4> kNames = {"nearest", "nearest-exact", "bilinear", "bicubic"};
  return kNames.at(static_cast<std::size_t>(mode));
}

template <typename T>
std::string joined(const std::vector<T>& values, std::string (*text)(double)) {
  std::vector<std::string> texts;
  for (const auto value : values) texts.push_back(text(static_cast<double>(value)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

inline std::string fill_text(const Numbers& fill) {
  return fill.size() == 1 ? number_text(fill.front()) : fmt::format("({})", joined(fill, number_text));
}

inline std::string range_text(const Range& range) {
  return fmt::format("({}, {})", float_text(range.first), float_text(range.second));
}

}  // namespace lockstep::transforms
