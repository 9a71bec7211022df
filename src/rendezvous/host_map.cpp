// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/host_map.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_map>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::rendezvous {
namespace {

[[noreturn]] void refuse_text(std::string_view text) {
  throw RendezvousError(fmt::format(
      "the ranks' store has a malformed host map, \"{}\"; do all ranks run the same version of Lockstep?",
      text));
}

// Removes a number and its terminator from the front.
int take_number(std::string_view& rest, char end, std::string_view whole) {
  int value = 0;
  const auto [stop, code] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (code != std::errc() || value < 0) refuse_text(whole);
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  if (rest.empty() ? end != ',' : rest.front() != end) refuse_text(whole);
  if (!rest.empty()) rest.remove_prefix(1);
  return value;
}

}  // namespace

HostMap HostMap::of(const std::vector<std::string>& identities) {
  std::unordered_map<std::string, int> numbers;
  std::vector<int> hosts;
  hosts.reserve(identities.size());
  for (const auto& identity : identities) {
    hosts.push_back(numbers.emplace(identity, static_cast<int>(numbers.size())).first->second);
  }
  return HostMap(std::move(hosts));
}

std::string HostMap::text() const {
  std::string text;
  for (auto run = hosts_.begin(); run != hosts_.end();) {
    const auto end = std::find_if(run, hosts_.end(), [&](int host) { return host != *run; });
    fmt::format_to(std::back_inserter(text), "{}{}*{}", text.empty() ? "" : ",", std::distance(run, end),
                   *run);
    run = end;
  }
  return text;
}

HostMap HostMap::from_text(std::string_view text) {
  std::vector<int> hosts;
  for (auto rest = text; !rest.empty();) {
    const int count = take_number(rest, '*', text);
    const int host = take_number(rest, ',', text);
    hosts.insert(hosts.end(), static_cast<std::size_t>(count), host);
  }
  return HostMap(std::move(hosts));
}

bool HostMap::all_on_one_host(const std::vector<int>& ranks) const {
  return std::ranges::all_of(ranks, [&](int rank) { return host(rank) == host(ranks.front()); });
}

int HostMap::local_size(int rank) const { return static_cast<int>(std::ranges::count(hosts_, host(rank))); }

int HostMap::local_rank(int rank) const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank, host(rank)));
}

}  // namespace lockstep::rendezvous
