// SPDX-License-Identifier: BSD-3-Clause
#include "training/return_plan.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include <lockstep/serialize/torch_file.h>

namespace lockstep::training {
namespace {

// Ranks whose commits are lost together.
struct Domain {
  std::string host;
  std::int64_t launcher = 0;
  std::vector<int> ranks{};
};

std::vector<Domain> domains_of(const std::vector<HeldCommits>& ranks) {
  std::vector<Domain> domains;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& held = ranks[rank];
    auto found = std::ranges::find_if(
        domains, [&](const auto& each) { return each.host == held.host && each.launcher == held.launcher; });
    if (found == domains.end()) {
      domains.push_back({.host = held.host, .launcher = held.launcher});
      found = domains.end() - 1;
    }
    found->ranks.push_back(static_cast<int>(rank));
  }
  return domains;
}

const Domain& next_of(const std::vector<Domain>& domains, std::size_t index) {
  for (std::size_t step = 1; step < domains.size(); ++step) {
    const auto& next = domains[(index + step) % domains.size()];
    if (next.host != domains[index].host) return next;
  }
  return domains[(index + 1) % domains.size()];
}

int holder_of(const std::vector<HeldCommits>& ranks, std::int64_t number, int rank) {
  const auto found =
      std::ranges::find_if(ranks, [&](const auto& each) { return each.find_copy(number, rank) != nullptr; });
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

std::optional<ReturnPlan> plan_for(const std::vector<HeldCommits>& ranks, std::int64_t number) {
  ReturnPlan plan{.number = number, .source = -1};
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (ranks[static_cast<std::size_t>(rank)].find_own(number) != nullptr) {
      if (plan.source < 0) plan.source = rank;
      continue;
    }
    const int from = holder_of(ranks, number, rank);
    if (from < 0) return std::nullopt;
    plan.transfers.push_back({.from = from, .to = rank});
  }
  if (plan.source < 0) return std::nullopt;
  return plan;
}

}  // namespace

const HeldCommits::Own* HeldCommits::find_own(std::int64_t number) const {
  const auto found = std::ranges::find(own, number, &Own::number);
  return found == own.end() ? nullptr : &*found;
}

const HeldCommits::Copy* HeldCommits::find_copy(std::int64_t number, int rank) const {
  const auto found = std::ranges::find_if(
      copies, [&](const auto& each) { return each.number == number && each.rank == rank; });
  return found == copies.end() ? nullptr : &*found;
}

std::string packed(const HeldCommits& held) {
  List own, copies;
  for (const auto& each : held.own) own.items.emplace_back(List{each.number, each.common_bytes});
  for (const auto& each : held.copies) copies.items.emplace_back(List{each.number, each.rank, each.bytes});
  return save_bytes(List{held.host, held.launcher, std::move(own), std::move(copies), held.message_bytes});
}

HeldCommits unpacked(const std::string& bytes) {
  const auto value = load_bytes(bytes);
  const auto& items = value.as_items();
  HeldCommits held{.host = items.at(0).as_string(),
                   .launcher = items.at(1).as_int(),
                   .message_bytes = items.at(4).as_int()};
  for (const auto& each : items.at(2).as_items())
    held.own.push_back(
        {.number = each.as_items().at(0).as_int(), .common_bytes = each.as_items().at(1).as_int()});
  for (const auto& each : items.at(3).as_items()) {
    const auto& copy = each.as_items();
    held.copies.push_back({.number = copy.at(0).as_int(),
                           .rank = static_cast<int>(copy.at(1).as_int()),
                           .bytes = copy.at(2).as_int()});
  }
  return held;
}

std::vector<int> neighbours_of(const std::vector<HeldCommits>& ranks) {
  const auto domains = domains_of(ranks);
  if (domains.size() < 2) return {};
  std::vector<int> neighbours(ranks.size());
  for (std::size_t index = 0; index < domains.size(); ++index) {
    const auto& next = next_of(domains, index).ranks;
    const auto& own = domains[index].ranks;
    for (std::size_t i = 0; i < own.size(); ++i)
      neighbours[static_cast<std::size_t>(own[i])] = next[i % next.size()];
  }
  return neighbours;
}

std::optional<ReturnPlan> plan_return(const std::vector<HeldCommits>& ranks) {
  std::set<std::int64_t, std::greater<>> numbers;
  for (const auto& rank : ranks)
    for (const auto& commit : rank.own) numbers.insert(commit.number);
  for (const auto number : numbers)
    if (auto plan = plan_for(ranks, number)) return plan;
  return std::nullopt;
}

}  // namespace lockstep::training
