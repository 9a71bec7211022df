// SPDX-License-Identifier: BSD-3-Clause
// Which nodes a Coordinator takes in, and what it does when a node is lost and the others go on.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/time_limits.h"
#include "launch/coordinator.h"
#include "launch/options.h"

namespace lockstep::launch {
namespace {

std::string span_of(const Coordinator::Clock::duration& span) {
  return span_text(std::chrono::duration_cast<std::chrono::milliseconds>(span));
}

}  // namespace

// A node that has finished must not start again.
bool Coordinator::has_room() const {
  return static_cast<int>(members_.size()) < options_.shared.max_nodes && nodes_.size() > members_.size() &&
         !any_is(NodeState::finished);
}

std::string Coordinator::reason_to_refuse(const NodeInfo& info) const {
  if (state_ == State::ended) return "the run has ended";
  if (auto found = difference({options_.shared, options_.host}, {info.shared, info.host}); !found.empty())
    return found;
  if (options_.numbered != info.node_rank.has_value()) {
    const auto in_words = [](bool numbered) { return numbered ? "a --node-rank" : "no --node-rank"; };
    return fmt::format(
        "the node on {} has {}, but the node on {}, which coordinates the run, has {}; set it on all nodes or "
        "on none",
        info.host, in_words(info.node_rank.has_value()), options_.host, in_words(options_.numbered));
  }
  if (info.node_rank) {
    if (auto complaint = reason_to_refuse_number(info); !complaint.empty()) return complaint;
  }
  return options_.shared.on_loss == text_of(OnLoss::oversubscribe) ? reason_to_refuse_memory(info) : "";
}

std::string Coordinator::reason_to_refuse_number(const NodeInfo& info) const {
  if (*info.node_rank >= options_.shared.max_nodes) {
    return fmt::format("the node on {} has --node-rank {}, but the run has {} nodes", info.host,
                       *info.node_rank, options_.shared.max_nodes);
  }
  for (const auto& [other, member] : nodes_) {
    if (member.info.node_rank != info.node_rank) continue;
    if (member.state == NodeState::lost && state_ == State::running)
      return reason_not_to_take_place(info, member);
    return fmt::format(
        "the node on {} has --node-rank {}, but that of {} has it already; give each node another", info.host,
        *info.node_rank, member.info.host);
  }
  return "";
}

// Ranks that share memory could not do so on two hosts.
std::string Coordinator::reason_to_refuse_memory(const NodeInfo& info) const {
  for (const auto& [other, member] : nodes_) {
    if (member.state == NodeState::lost || member.info.memory != info.memory) continue;
    return fmt::format(
        "--on-loss oversubscribe moves whole hosts, but the nodes on {} and {} share the memory of one host; start one "
        "launcher per host, or give each another LOCKSTEP_HOST_ID",
        member.info.host, info.host);
  }
  return "";
}

std::string Coordinator::missing_nodes() const {
  std::vector<int> missing;
  if (options_.numbered) {
    for (int rank = 0; rank < options_.shared.max_nodes; ++rank) {
      const auto has_it = [&](const auto& node) { return node.second.info.node_rank == rank; };
      if (std::ranges::none_of(nodes_, has_it)) missing.push_back(rank);
    }
  }
  return missing.empty() ? "" : fmt::format(": node-rank {} is missing", fmt::join(missing, ", "));
}

std::optional<Coordinator::Clock::time_point> Coordinator::next_tick() const {
  auto next = next_tick_;
  if (state_ != State::running) return next;
  for (const Node node : members_) {
    const auto& member = nodes_.at(node);
    if (member.state == NodeState::lost) next = std::min(next.value_or(member.free_until), member.free_until);
  }
  return next;
}

const Coordinator::Member* Coordinator::lost_member() const {
  const auto found =
      std::ranges::find_if(members_, [&](Node node) { return nodes_.at(node).state == NodeState::lost; });
  return found == members_.end() ? nullptr : &nodes_.at(*found);
}

// The launcher of the first member serves the store of the run.
bool Coordinator::can_go_on_without(const Member& lost) const {
  const bool replaces = options_.shared.on_loss == text_of(OnLoss::replace) ||
                        options_.shared.on_loss == text_of(OnLoss::oversubscribe);
  return replaces && lost.state == NodeState::running && !lost.info.is_host && lost.assignment != 0 &&
         !suspect_ && !any_is(NodeState::finished) &&
         restarts_ + lost.info.ranks <= options_.shared.max_restarts;
}

void Coordinator::go_on_without(Node node, const std::string& why) {
  auto& lost = nodes_.at(node);
  const auto what = fmt::format("node {} ({}) was lost: {}", lost.assignment, lost.info.host, why);
  lost.state = NodeState::lost;
  lost.loss = {.reason = what, .host = lost.info.host, .restarts = restarts_};
  ++lost.epoch;
  free_place_of(node);
  const auto adopter = lost.host;
  const auto what_next =
      adopter ? fmt::format("the launcher of node {} ({}) starts its ranks", nodes_.at(*adopter).assignment,
                            nodes_.at(*adopter).info.host)
              : fmt::format("the other ranks wait {} for a launcher that takes its place{}",
                            span_of(lost.free_until - now_),
                            options_.numbered ? fmt::format(": --node-rank {}", lost.assignment) : "");
  for (const Node member : members_) {
    send(member, Lost{.attempt = attempt_,
                      .node_rank = lost.assignment,
                      .epoch = lost.epoch,
                      .notice = fmt::format("{}; {}", what, what_next),
                      .report = lost.loss});
  }
  order_adopter_of(lost);
  replace_adopters_on(node);
  for (const auto& [other, member] : nodes_) {
    if (!is_member(other) && reason_not_to_take_place(member.info, lost).empty() && take_place(other)) return;
  }
}

void Coordinator::free_place_of(Node node) {
  auto& lost = nodes_.at(node);
  lost.host.reset();
  lost.host = choose_adopter_of(node);
  lost.free_until =
      now_ + (lost.host ? Clock::duration(kAdoptLimit) : Clock::duration(options_.join_timeout));
}

void Coordinator::order_adopter_of(const Member& lost) {
  if (!lost.host) return;
  send(*lost.host, Adopt{{.node_rank = lost.assignment,
                          .role = lost.info.role,
                          .memory = lost.info.memory,
                          .threads = lost.info.threads}});
}

// Those that have not joined yet: they are gone with that node.
void Coordinator::replace_adopters_on(Node node) {
  for (const Node member : members_) {
    const auto& lost = nodes_.at(member);
    if (lost.state != NodeState::lost || lost.host != node) continue;
    free_place_of(member);
    order_adopter_of(lost);
  }
}

// The one with the fewest ranks, those that it has adopted included; of several the first.
std::optional<Coordinator::Node> Coordinator::choose_adopter_of(Node lost) const {
  if (options_.shared.on_loss != text_of(OnLoss::oversubscribe)) return std::nullopt;
  std::optional<Node> best;
  for (const Node node : members_) {
    const auto& member = nodes_.at(node);
    if (node == lost || member.state != NodeState::running || member.info.is_adopter) continue;
    if (!best || ranks_at(node) < ranks_at(*best)) best = node;
  }
  return best;
}

int Coordinator::ranks_at(Node node) const {
  int ranks = 0;
  for (const Node each : members_) {
    const auto& member = nodes_.at(each);
    if (each == node || member.host == node) ranks += member.info.ranks;
  }
  return ranks;
}

std::string Coordinator::reason_not_to_take_place(const NodeInfo& info, const Member& lost) const {
  if (info.ranks == lost.info.ranks && info.role == lost.info.role) return "";
  return fmt::format(
      "the node on {} has {} ranks of role {}, but the lost node {}, whose place it would take, has {} of role {}; start "
      "the launcher with the same --nproc-per-node and --role",
      info.host, info.ranks, info.role, lost.assignment, lost.info.ranks, lost.info.role);
}

bool Coordinator::take_place(Node node) {
  const auto& info = nodes_.at(node).info;
  const auto place = std::ranges::find_if(members_, [&](Node member) {
    const auto& lost = nodes_.at(member);
    return lost.state == NodeState::lost && lost.info.node_rank == info.node_rank &&
           reason_not_to_take_place(info, lost).empty();
  });
  if (place == members_.end()) return false;
  const Member lost = nodes_.at(*place);
  if (restarts_ + info.ranks > options_.shared.max_restarts) {  // ranks were replaced meanwhile
    fail(lost.loss, headline(lost.loss));
    return true;
  }
  restarts_ += info.ranks;
  nodes_.erase(*place);
  *place = node;
  auto& member = nodes_.at(node);
  member.state = NodeState::running;
  member.assignment = lost.assignment;
  member.epoch = lost.epoch;
  if (info.is_adopter) member.host = lost.host;
  const auto notice = fmt::format(
      "a launcher on {} has taken the place of node {}; its ranks are replaced ({} of {} restarts)",
      info.host, lost.assignment, restarts_, options_.shared.max_restarts);
  for (const Node each : members_) {
    if (nodes_.at(each).state != NodeState::running || each == node) continue;
    send(each, Restarts{.attempt = attempt_, .restarts = restarts_});
    send(each, Notice{notice});
  }
  send(node, Start{assignment_of(static_cast<std::size_t>(place - members_.begin()), reserved_)});
  return true;
}

void Coordinator::end_vain_waits() {
  for (const Node node : members_) {
    const auto& lost = nodes_.at(node);
    if (lost.state != NodeState::lost || now_ < lost.free_until) continue;
    auto report = lost.loss;
    report.reason += fmt::format(
        "; no launcher has taken its place within {}",
        span_of(lost.host ? Clock::duration(kAdoptLimit) : Clock::duration(options_.join_timeout)));
    report.ends_run = true;  // a restart would wait for the same node
    return fail(report, report.reason);
  }
}

void Coordinator::forget_lost_members() {
  std::erase_if(members_, [&](Node node) { return nodes_.at(node).state == NodeState::lost; });
  std::erase_if(nodes_, [](const auto& node) { return node.second.state == NodeState::lost; });
}

}  // namespace lockstep::launch
