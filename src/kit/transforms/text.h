// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include <lockstep/transforms/geometry.h>
#include <lockstep/transforms/transform.h>

namespace lockstep::transforms {

// Values as Python prints them.
std::string float_text(double value);   // "1.0"
std::string number_text(double value);  // "1", "1.5"
std::string fill_text(const Numbers& fill);
std::string_view bool_text(bool value);
std::string_view text_of(InterpolationMode mode);

template <typename T>
std::string joined(const std::vector<T>& values, std::string (*text)(double)) {
  std::vector<std::string> texts;
  for (const auto value : values) texts.push_back(text(static_cast<double>(value)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

inline std::string range_text(const Range& range) {
  return fmt::format("({}, {})", float_text(range.first), float_text(range.second));
}

}  // namespace lockstep::transforms
