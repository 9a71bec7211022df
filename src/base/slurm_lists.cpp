// SPDX-License-Identifier: BSD-3-Clause
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/slurm_lists.h>

namespace lockstep {
namespace {

// More hosts than any machine has: a list that claims them is damaged, not large.
constexpr std::int64_t kMostHosts = 1'000'000;

[[noreturn]] void refuse(const std::string& list, const std::string& complaint) {
  throw RendezvousError(fmt::format("SLURM's list \"{}\" is not understood: {}", list, complaint));
}

std::int64_t number(const std::string& text, const std::string& list) {
  std::int64_t value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (text.empty() || code != std::errc() || stop != end || value < 0) {
    refuse(list, fmt::format("\"{}\" is not a number", text));
  }
  return value;
}

// At commas that stand outside of brackets.
std::vector<std::string> split_outside_brackets(const std::string& text, const std::string& list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '[') - (c == ']');
    if (depth < 0 || depth > 1) refuse(list, "its brackets do not match");
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (depth != 0) refuse(list, "its brackets do not match");
  return parts;
}

// "01-03,07": 01, 02, 03, 07, as wide as the range's first number.
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& list) {
  std::vector<std::string> texts;
  for (const auto& range : split_outside_brackets(ranges, list)) {
    const auto dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const auto from = number(first, list);
    const auto to = number(last, list);
    if (to < from || to - from > kMostHosts)
      refuse(list, fmt::format("the range \"{}\" is not ascending", range));
    for (auto value = from; value <= to; ++value) texts.push_back(fmt::format("{:0{}}", value, first.size()));
  }
  return texts;
}

std::vector<std::string> expand_one(const std::string& pattern, const std::string& list) {
  const auto open = pattern.find('[');
  if (open == std::string::npos) return {pattern};
  const auto close = pattern.find(']', open);
  std::vector<std::string> hosts;
  const auto tails = expand_one(pattern.substr(close + 1), list);
  for (const auto& middle : expand_ranges(pattern.substr(open + 1, close - open - 1), list)) {
    for (const auto& tail : tails) hosts.push_back(pattern.substr(0, open) + middle + tail);
    if (static_cast<std::int64_t>(hosts.size()) > kMostHosts) refuse(list, "it names too many hosts");
  }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_node_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (const auto& pattern : split_outside_brackets(list, list)) {
    if (pattern.empty()) refuse(list, "it has an empty entry");
    for (auto& host : expand_one(pattern, list)) hosts.push_back(std::move(host));
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(const std::string& list) {
  std::vector<int> tasks;
  for (const auto& entry : split_outside_brackets(list, list)) {
    const auto times = entry.find("(x");
    const auto count = number(entry.substr(0, times), list);
    std::int64_t repeats = 1;
    if (times != std::string::npos) {
      if (!entry.ends_with(')')) refuse(list, "its brackets do not match");
      repeats = number(entry.substr(times + 2, entry.size() - times - 3), list);
    }
    if (count > kMostHosts || repeats > kMostHosts) refuse(list, "its numbers are too large");
    tasks.insert(tasks.end(), static_cast<std::size_t>(repeats), static_cast<int>(count));
  }
  return tasks;
}

}  // namespace lockstep
