// SPDX-License-Identifier: BSD-3-Clause
#include "launch/adopted_node.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep::launch {
namespace {

constexpr int kMostThreads = 100'000;

int number_in(const std::string& word, int least, int most, const std::string& text) {
  const auto number = parse_number<int>(word);
  if (!number || *number < least || *number > most)
    throw_error<ArgumentError>("--adopt {}: a launcher gives this option to another one that it starts",
                               text);
  return *number;
}

}  // namespace

std::string adopt_text(const AdoptedNode& node) {
  return fmt::format("{}:{}:{}", node.node_rank, fmt::join(node.threads, ","), node.role);
}

AdoptedNode parse_adopted(const std::string& text) {
  const auto first = text.find(':');
  const auto second = first == std::string::npos ? first : text.find(':', first + 1);
  if (second == std::string::npos) number_in("", 0, 0, text);
  AdoptedNode node{.node_rank = number_in(text.substr(0, first), 1, kMostThreads, text),
                   .role = text.substr(second + 1)};
  for (const auto& word : split(text.substr(first + 1, second - first - 1), ','))
    node.threads.push_back(number_in(word, 1, kMostThreads, text));
  return node;
}

}  // namespace lockstep::launch
