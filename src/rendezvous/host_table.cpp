// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/host_table.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_map>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::rendezvous {
namespace {

[[noreturn]] void refuse_table(std::string_view text) {
  throw RendezvousError(fmt::format(
      "the ranks' store says \"{}\" of where the ranks are; do all of them run the same Lockstep?", text));
}

// Takes a number and what follows it off the front.
int take_number(std::string_view& rest, char end, std::string_view whole) {
  int value = 0;
  const auto [stop, code] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (code != std::errc() || value < 0) refuse_table(whole);
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  if (rest.empty() ? end != ',' : rest.front() != end) refuse_table(whole);
  if (!rest.empty()) rest.remove_prefix(1);
  return value;
}

}  // namespace

HostTable HostTable::of(const std::vector<std::string>& identities) {
  std::unordered_map<std::string, int> numbers;
  std::vector<int> hosts;
  hosts.reserve(identities.size());
  for (const auto& identity : identities) {
    hosts.push_back(numbers.emplace(identity, static_cast<int>(numbers.size())).first->second);
  }
  return HostTable(std::move(hosts));
}

std::string HostTable::text() const {
  std::string text;
  for (auto run = hosts_.begin(); run != hosts_.end();) {
    const auto end = std::find_if(run, hosts_.end(), [&](int host) { return host != *run; });
    fmt::format_to(std::back_inserter(text), "{}{}*{}", text.empty() ? "" : ",", std::distance(run, end),
                   *run);
    run = end;
  }
  return text;
}

HostTable HostTable::from_text(std::string_view text) {
  std::vector<int> hosts;
  for (auto rest = text; !rest.empty();) {
    const int count = take_number(rest, '*', text);
    const int host = take_number(rest, ',', text);
    hosts.insert(hosts.end(), static_cast<std::size_t>(count), host);
  }
  return HostTable(std::move(hosts));
}

bool HostTable::all_on_one_host(const std::vector<int>& ranks) const {
  return std::ranges::all_of(ranks, [&](int rank) { return host(rank) == host(ranks.front()); });
}

int HostTable::local_size(int rank) const { return static_cast<int>(std::ranges::count(hosts_, host(rank))); }

int HostTable::local_rank(int rank) const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank, host(rank)));
}

}  // namespace lockstep::rendezvous
