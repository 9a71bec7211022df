// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/rank_terms.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace lockstep::rendezvous {
namespace {

constexpr std::string_view kRank = "rank";

struct Term {
  std::string_view key;
  std::string_view event;
  std::string_view name;
  std::string value;
  std::string_view remedy;
};

// The version first: other terms may have a meaning of their own in another one.
std::array<Term, 4> list_of(const RankTerms& terms) {
  return {
      {{"lockstep", "run different versions of Lockstep", "Lockstep is", terms.lockstep,
        "build all programs of the run with the same version"},
       {"libtorch", "run different versions of LibTorch", "LibTorch is", terms.libtorch,
        "build all programs of the run with the same version"},
       {"world_size", "were started with different world sizes", "WORLD_SIZE is",
        std::to_string(terms.world_size), "give every rank the same WORLD_SIZE, or InitOptions::world_size"},
       {"backend", "ask for different backends", "the backend is", terms.backend,
        "give every rank the same InitOptions::backend"}}};
}

// The rest of the line that begins with `key`; "unknown" without one.
std::string_view value_of(std::string_view key, std::string_view text) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    if (line.starts_with(key) && line.substr(key.size()).starts_with(' ')) return line.substr(key.size() + 1);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return "unknown";
}

}  // namespace

std::string to_text(const RankTerms& terms, int rank) {
  auto text = fmt::format("{} {}\n", kRank, rank);
  for (const auto& term : list_of(terms)) text += fmt::format("{} {}\n", term.key, term.value);
  return text;
}

std::string difference(const RankTerms& own, int rank, std::string_view first) {
  for (const auto& term : list_of(own)) {
    const auto other = value_of(term.key, first);
    if (other == term.value) continue;
    return fmt::format("the ranks {}: {} {} on rank {} and {} on rank {}; {}", term.event, term.name,
                       term.value, rank, other, value_of(kRank, first), term.remedy);
  }
  return "";
}

}  // namespace lockstep::rendezvous
