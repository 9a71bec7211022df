// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/text.h"

#include <array>
#include <cmath>

namespace lockstep::transforms {

std::string float_text(double value) {
  auto text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string number_text(double value) {
  return value == std::trunc(value) ? fmt::format("{:.0f}", value) : float_text(value);
}

std::string fill_text(const Numbers& fill) {
  return fill.size() == 1 ? number_text(fill.front()) : fmt::format("({})", joined(fill, number_text));
}

std::string_view bool_text(bool value) { return value ? "True" : "False"; }

std::string_view text_of(InterpolationMode mode) {
  constexpr std::array<std::string_view, 4> kNames = {"nearest", "nearest-exact", "bilinear", "bicubic"};
  return kNames.at(static_cast<std::size_t>(mode));
}

}  // namespace lockstep::transforms
