// SPDX-License-Identifier: BSD-3-Clause
#include "launch/looks.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

std::int64_t milliseconds_of(Looks::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace

std::string Looks::begin(Connection asker, const std::vector<Coordinator::MemberNode>& nodes,
                         Clock::time_point now) {
  if (nodes.empty()) return "no ranks run now: the launchers wait for each other";
  if (asked_.size() >= kMost)
    return fmt::format("{} others look at the ranks of this run now; try again", asked_.size());
  const int id = ++last_id_;
  auto& asked = asked_[id];
  asked.asker = asker;
  asked.began = now;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const int host = static_cast<int>(i);
    asked.hosts[host] = {.node = nodes[i].node, .name = nodes[i].host};
    messages_.push_back(
        {.to = nodes[i].node,
         .what = Look{.id = id, .host = host, .first_rank = nodes[i].first_rank, .ranks = nodes[i].ranks}});
  }
  return "";
}

Looks::Asked* Looks::find(const Hello& from) {
  const auto asked = asked_.find(from.look);
  return asked == asked_.end() || !asked->second.hosts.contains(from.asked) ? nullptr : &asked->second;
}

bool Looks::add(const Hello& from, const Seen& seen, Clock::time_point now) {
  auto* const asked = find(from);
  if (asked == nullptr) return false;
  auto& host = asked->hosts.at(from.asked);
  if (host.left < 0) host.left = std::clamp(seen.parts, 1, kMostParts);
  Seen part = seen;
  part.host = from.asked;
  part.name = host.name;
  part.after_ms = milliseconds_of(now - asked->began);
  messages_.push_back({.to = asked->asker, .what = std::move(part)});
  if (--host.left > 0 && seen.problem.empty()) return true;
  asked->hosts.erase(from.asked);
  forget_complete();
  return false;
}

void Looks::give_up(Asked& asked, int host, const std::string& problem, Clock::time_point now) {
  const auto found = asked.hosts.find(host);
  messages_.push_back({.to = asked.asker,
                       .what = Seen{.host = host,
                                    .name = found->second.name,
                                    .problem = problem,
                                    .after_ms = milliseconds_of(now - asked.began)}});
  asked.hosts.erase(found);
}

void Looks::fail(const Hello& from, const std::string& why, Clock::time_point now) {
  if (auto* const asked = find(from)) give_up(*asked, from.asked, "its answer broke off: " + why, now);
  forget_complete();
}

void Looks::lose(Connection connection, Clock::time_point now) {
  std::erase_if(asked_, [&](const auto& asked) { return asked.second.asker == connection; });
  for (auto& [id, asked] : asked_) {
    std::vector<int> lost;
    for (const auto& [number, host] : asked.hosts) {
      if (host.node == connection) lost.push_back(number);
    }
    for (const int host : lost) give_up(asked, host, "its launcher is lost", now);
  }
  forget_complete();
}

void Looks::tick(Clock::time_point now) {
  for (auto& [id, asked] : asked_) {
    if (now < asked.began + kLimit) continue;
    while (!asked.hosts.empty()) {
      give_up(asked, asked.hosts.begin()->first,
              fmt::format("its launcher did not answer within {} s: its processes may be stopped, or the "
                          "network slow",
                          kLimit.count() / 1000),
              now);
    }
  }
  forget_complete();
}

// After the last part the asker gets End.
void Looks::forget_complete() {
  std::erase_if(asked_, [&](const auto& entry) {
    const auto& asked = entry.second;
    if (!asked.hosts.empty()) return false;
    messages_.push_back({.to = asked.asker, .what = End{}});
    return true;
  });
}

std::optional<Looks::Clock::time_point> Looks::next_tick() const {
  std::optional<Clock::time_point> next;
  for (const auto& [id, asked] : asked_)
    next = std::min(next.value_or(asked.began + kLimit), asked.began + kLimit);
  return next;
}

std::optional<Looks::Connection> Looks::asker_of(const Hello& from) const {
  const auto asked = asked_.find(from.look);
  return asked == asked_.end() ? std::nullopt : std::optional(asked->second.asker);
}

}  // namespace lockstep::launch
