// SPDX-License-Identifier: BSD-3-Clause
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/streams.h>

namespace lockstep::launch {
namespace {

Streams streams_of(const StreamChoice& choice, int local_rank) {
  const auto named = choice.of_rank.find(local_rank);
  return named == choice.of_rank.end() ? choice.every_rank : named->second;
}

bool contains(Streams streams, Streams one) {
  return (static_cast<int>(streams) & static_cast<int>(one)) != 0;
}

std::optional<Streams> one_choice(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return static_cast<Streams>(text[0] - '0');
}

// "1:2" into rank 1's choice.
bool read_pair(const std::string& text, StreamChoice& choice) {
  const auto colon = text.find(':');
  if (colon == std::string::npos || colon == 0) return false;
  int rank = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + colon, rank);
  const auto streams = one_choice(std::string_view(text).substr(colon + 1));
  if (code != std::errc() || stop != text.data() + colon || rank < 0 || !streams) return false;
  choice.of_rank[rank] = *streams;
  return true;
}

}  // namespace

bool StreamChoice::has_out(int local_rank) const {
  return contains(streams_of(*this, local_rank), Streams::out);
}
bool StreamChoice::has_err(int local_rank) const {
  return contains(streams_of(*this, local_rank), Streams::err);
}
bool StreamChoice::any() const { return every_rank != Streams::none || !of_rank.empty(); }

StreamChoice parse_streams(const std::string& text, const std::string& option) {
  StreamChoice choice;
  if (const auto all = one_choice(text)) {
    choice.every_rank = *all;
    return choice;
  }
  std::istringstream pairs(text);
  bool good = !text.empty() && text.back() != ',';
  for (std::string pair; good && std::getline(pairs, pair, ',');) good = read_pair(pair, choice);
  if (good) return choice;
  throw ArgumentError(
      fmt::format("{} {}: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one of them for each local "
                  "rank, as in 0:3,1:2",
                  option, text));
}

}  // namespace lockstep::launch
