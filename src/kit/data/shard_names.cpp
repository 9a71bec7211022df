// SPDX-License-Identifier: BSD-3-Clause
#include "data/shard_names.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>

#include "base/throw_error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMostNames = 1'000'000;

using Names = std::vector<std::string>;

void check_count(std::uint64_t count, std::string_view pattern) {
  if (count <= kMostNames) return;
  throw_error<ArgumentError>("{}: the braces stand for more than {} names", pattern, kMostNames);
}

// The position of the next `wanted` outside of braces; the size of the text without one.
std::size_t find_outside_braces(std::string_view text, char wanted, std::size_t from) {
  int depth = 0;
  for (auto at = from; at < text.size(); ++at) {
    if (depth == 0 && text[at] == wanted) return at;
    if (text[at] == '{') ++depth;
    if (text[at] == '}') --depth;
    if (depth < 0) break;
  }
  if (depth != 0) throw_error<ArgumentError>("{}: a brace has no partner", text);
  return text.size();
}

struct RangeEnd {
  std::int64_t value;
  std::string_view text;

  bool is_padded() const {
    return text != "0" && text != "-0" && (text.starts_with('0') || text.starts_with("-0"));
  }
};

// The number that all of the text is.
std::optional<RangeEnd> parse_end(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return RangeEnd{.value = value, .text = text};
}

// "first..last" or "first..last..step"; nullopt when the text is no range.
std::optional<Names> expand_range(std::string_view text) {
  constexpr std::string_view kDots = "..";
  const auto middle = text.find(kDots);
  if (middle == std::string_view::npos) return std::nullopt;
  auto rest = text.substr(middle + kDots.size());
  const auto second = std::min(rest.find(kDots), rest.size());
  const auto first = parse_end(text.substr(0, middle));
  const auto last = parse_end(rest.substr(0, second));
  rest.remove_prefix(second);
  const auto step = rest.empty() ? RangeEnd{.value = 1, .text = {}} : parse_end(rest.substr(kDots.size()));
  if (!first || !last || !step) return std::nullopt;

  const bool rising = first->value < last->value;
  const auto low = static_cast<std::uint64_t>(rising ? first->value : last->value);
  const auto high = static_cast<std::uint64_t>(rising ? last->value : first->value);
  const auto stride = step->value < 0 ? -static_cast<std::uint64_t>(step->value)
                                      : std::max<std::uint64_t>(static_cast<std::uint64_t>(step->value), 1);
  check_count((high - low) / stride, text);
  const auto width =
      first->is_padded() || last->is_padded() ? std::max(first->text.size(), last->text.size()) : 0;
  Names names;
  for (std::uint64_t i = 0; i <= (high - low) / stride; ++i) {
    const auto value = static_cast<std::int64_t>(rising ? low + i * stride : high - i * stride);
    names.push_back(fmt::format("{:0{}}", value, width));
  }
  return names;
}

// Each of the first followed by each of the second.
Names product(const Names& first, const Names& second, std::string_view pattern) {
  check_count(std::uint64_t{first.size()} * second.size(), pattern);
  Names all;
  for (const auto& begin : first) {
    for (const auto& end : second) all.push_back(begin + end);
  }
  return all;
}

// "a,b"; nullopt without a comma outside of braces.
std::optional<Names> expand_choices(std::string_view text) {
  auto comma = find_outside_braces(text, ',', 0);
  if (comma == text.size()) return std::nullopt;
  Names names;
  for (std::size_t begin = 0;; comma = find_outside_braces(text, ',', begin)) {
    std::ranges::move(expand_braces(text.substr(begin, comma - begin)), std::back_inserter(names));
    if (comma == text.size()) return names;
    begin = comma + 1;
  }
}

Names expand_expression(std::string_view text) {
  if (auto names = expand_range(text)) return *std::move(names);
  if (auto names = expand_choices(text)) return *std::move(names);
  return product(product({"{"}, expand_braces(text), text), {"}"}, text);
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern) {
  Names names{""};
  for (std::size_t at = 0; at < pattern.size();) {
    const auto open = find_outside_braces(pattern, '{', at);
    names = product(names, {std::string(pattern.substr(at, open - at))}, pattern);
    if (open == pattern.size()) break;
    const auto close = find_outside_braces(pattern, '}', open + 1);
    if (close == pattern.size()) throw_error<ArgumentError>("{}: a brace has no partner", pattern);
    names = product(names, expand_expression(pattern.substr(open + 1, close - open - 1)), pattern);
    at = close + 1;
  }
  check_count(names.size(), pattern);
  return names;
}

}  // namespace lockstep::data
