// SPDX-License-Identifier: BSD-3-Clause
#include "training/meter.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace lockstep::training {
namespace {

// "02:03" or "1:02:03"
std::string interval_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  const auto hours = whole / 3600;
  const auto rest = fmt::format("{:02}:{:02}", whole / 60 % 60, whole % 60);
  return hours > 0 ? fmt::format("{}:{}", hours, rest) : rest;
}

std::string rate_text(double rate, const std::string& unit) {
  if (rate <= 0) return fmt::format("?{}/s", unit);
  return rate < 1 ? fmt::format("{:5.2f}s/{}", 1 / rate, unit) : fmt::format("{:5.2f}{}/s", rate, unit);
}

std::string number_text(double value) {
  const auto whole = fmt::format("{}", value);
  auto rounded = fmt::format("{:.3g}", value);
  for (const auto* sign : {"e+0", "e-0"}) {
    if (const auto zero = rounded.find(sign); zero != std::string::npos) rounded.erase(zero + 2, 1);
  }
  return rounded.size() < whole.size() ? rounded : whole;
}

// Each character of the bar is full, a digit of tenths, or empty.
std::string bar_text(double fraction, std::int64_t length) {
  const auto tenths = static_cast<std::int64_t>(fraction * static_cast<double>(length) * 10);
  std::string bar(static_cast<std::size_t>(std::min(tenths / 10, length)), '#');
  if (std::ssize(bar) < length) bar += tenths % 10 == 0 ? ' ' : static_cast<char>('0' + tenths % 10);
  bar.resize(static_cast<std::size_t>(length), ' ');
  return bar;
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

std::string first_characters(std::string text, std::int64_t count) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins_character(text[i]) && count-- == 0) text.resize(i);
  }
  return text;
}

// A line break would tear the screen.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char byte) { return byte < ' ' || byte == 0x7F; }, ' ');
  return text;
}

}  // namespace

std::string meter_text(const Meter& meter, int columns) {
  const auto done = static_cast<double>(meter.n);
  const double mean = meter.elapsed > 0 ? static_cast<double>(meter.n - meter.initial) / meter.elapsed : 0;
  const double rate = meter.rate.value_or(mean);
  const auto left = one_line(meter.desc.empty() ? "" : meter.desc + ": ");
  const auto elapsed = interval_text(meter.elapsed);
  const auto right =
      rate_text(rate, meter.unit) + one_line(meter.postfix.empty() ? "" : ", " + meter.postfix);
  const auto fitting = [columns](const std::string& text) {
    return columns == 0 ? text : first_characters(text, columns);
  };
  if (!meter.total || *meter.total <= 0 || meter.n > *meter.total) {
    return fitting(fmt::format("{}{}{} [{}, {}]", left, meter.n, meter.unit, elapsed, right));
  }
  const auto total = static_cast<double>(*meter.total);
  const auto remaining = rate > 0 ? interval_text((total - done) / rate) : "?";
  const auto before = fmt::format("{}{:3.0f}%", left, done / total * 100);
  const auto after = fmt::format(" {}/{} [{}<{}, {}]", meter.n, *meter.total, elapsed, remaining, right);
  if (columns == 0) return before + after;
  const auto taken = std::ranges::count_if(before + after, begins_character) + 2;
  const auto bar = bar_text(done / total, std::max<std::int64_t>(columns - taken, 1));
  return fitting(fmt::format("{}|{}|{}", before, bar, after));
}

std::string postfix_text(const Scalars& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values) parts.push_back(fmt::format("{}={}", name, number_text(value)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace lockstep::training
