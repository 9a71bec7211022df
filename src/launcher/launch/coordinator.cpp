// SPDX-License-Identifier: BSD-3-Clause
#include "launch/coordinator.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::launch {
namespace {

// For the answer to Stop, after the longest grace period: SIGKILL takes up to 10 s, a broken connection 15 s.
constexpr std::chrono::seconds kMoreThanGrace{30};
// For the answer to Reserve, which takes milliseconds.
constexpr std::chrono::seconds kReserveLimit{60};
// After a rank that lost a peer: for the failure of that peer.
constexpr std::chrono::milliseconds kDoubtLimit{300};
// After a node that joined late: for more such nodes.
constexpr std::chrono::seconds kJoinPause{1};

std::string in_words(const Coordinator::Clock::duration& span) {
  return fmt::format("{:g} s", std::chrono::duration<double>(span).count());
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options, Clock::time_point now)
    : options_(options), deadline_(now + options.join_timeout), next_tick_(deadline_), now_(now) {}

std::string Coordinator::join(Node node, const NodeInfo& info, Clock::time_point now) {
  now_ = now;
  if (auto complaint = reason_to_refuse(info); !complaint.empty()) {
    send(node, Refused{complaint});
    return complaint;
  }
  nodes_[node] = {.info = info};
  if (state_ == State::gathering) {
    gather(now);
  } else if (state_ == State::running && take_place(node)) {
    return "";
  } else if (state_ == State::running && has_room() && !new_node_joined_ && !suspect_) {
    new_node_joined_ = true;
    set_deadline(kJoinPause);
  }
  return "";
}

void Coordinator::handle(Node node, const FromNode& message, Clock::time_point now) {
  now_ = now;
  if (const auto* leaving = std::get_if<Leaving>(&message)) {
    stop_signal_ = leaving->signal;
    leave(node, leaving->reason);
    stop_signal_ = 0;
    return;
  }
  if (!is_member(node)) return;
  std::visit(
      [&](const auto& content) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(content)>, Leaving>) on(node, content);
      },
      message);
}

// Without the coordinator's launcher the others cannot continue, so they do not restart.
void Coordinator::leave(Node node, const std::string& why) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || !found->second.info.is_host || ended()) {
    remove(node, why);
    return;
  }
  const auto host = found->second.info.host;
  nodes_.erase(found);
  std::erase_if(members_, [&](Node member) { return member == node; });
  end(FailureReport{
      .reason = fmt::format("the launcher on {}, which coordinates the nodes, ends: {}", host, why),
      .host = host,
      .restarts = restarts_});
}

void Coordinator::lose(Node node, const std::string& why, Clock::time_point now) {
  now_ = now;
  if (state_ == State::running && is_member(node) && can_go_on_without(nodes_.at(node))) {
    go_on_without(node, why);
  } else {
    remove(node, why);
  }
}

void Coordinator::remove(Node node, const std::string& why) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || state_ == State::ended) return;
  const Member lost = found->second;
  const bool was_member = is_member(node);
  nodes_.erase(found);
  if (!was_member) {
    if (state_ == State::gathering) gather(now_);
    return;
  }
  std::erase(members_, node);
  if (state_ == State::stopping) {
    continue_when_all_stopped();
  } else if (lost.state == NodeState::finished) {
    if (all_are(NodeState::finished)) end(std::nullopt);
  } else {
    const auto what = fmt::format("node {} ({}) was lost: {}", lost.assignment, lost.info.host, why);
    fail({.reason = what, .host = lost.info.host, .restarts = restarts_}, what);
  }
}

void Coordinator::tick(Clock::time_point now) {
  now_ = now;
  if (state_ == State::gathering) {
    gather(now);
    return;
  }
  if (state_ == State::running) end_vain_waits();
  if (!next_tick_ || now < deadline_) return;
  next_tick_.reset();
  if (state_ == State::reserving) {
    lose_silent_first_member();
  } else if (state_ == State::stopping) {
    lose_silent_members();
  } else if (state_ == State::running) {
    end_pause();
  }
}

void Coordinator::set_deadline(Clock::duration limit) {
  deadline_ = now_ + limit;
  next_tick_ = deadline_;
}

void Coordinator::lose_silent_first_member() {
  const Node silent = members_.front();
  send(silent, Refused{"it did not answer in time"});
  lose(silent, "its launcher does not answer", now_);
}

Coordinator::Clock::duration Coordinator::stop_limit() const {
  std::chrono::milliseconds longest{0};
  for (const Node node : members_) {
    longest = std::max(longest, std::chrono::milliseconds(nodes_.at(node).info.grace_period_ms));
  }
  return longest + kMoreThanGrace;
}

void Coordinator::lose_silent_members() {
  const auto limit = in_words(stop_limit());
  std::vector<std::string> notices;
  const auto is_silent = [&](Node node) { return nodes_.at(node).state != NodeState::stopped; };
  for (const Node node : members_) {
    if (!is_silent(node)) continue;
    const auto& lost = nodes_.at(node);
    notices.push_back(fmt::format(
        "node {} ({}) did not stop its ranks within {}; its processes may be frozen, and may still exist",
        lost.assignment, lost.info.host, limit));
    send(node, Refused{"it did not stop its ranks in time"});
    nodes_.erase(node);
  }
  for (const auto& text : notices) {
    for (const auto& [node, member] : nodes_) send(node, Notice{text});
  }
  std::erase_if(members_, [&](Node node) { return !nodes_.contains(node); });
  continue_when_all_stopped();
}

void Coordinator::end_pause() {
  if (suspect_) {
    fail(*suspect_, headline(*suspect_));
  } else if (new_node_joined_ && has_room()) {
    skip_last_call_ = true;
    stop_members("a node joined: restarting");
  }
}

// Inlined, g++ 12 takes the moved variant for uninitialized memory.
[[gnu::noinline]] void Coordinator::send(Node to, ToNode message) {
  messages_.push_back({.to = to, .what = std::move(message)});
}

bool Coordinator::is_waiting(Node node) const {
  const auto found = nodes_.find(node);
  return found != nodes_.end() && (state_ != State::running || found->second.state != NodeState::running);
}

std::vector<Coordinator::Message> Coordinator::take_messages() { return std::exchange(messages_, {}); }

bool Coordinator::is_member(Node node) const { return std::ranges::find(members_, node) != members_.end(); }

// Starts with enough nodes, waits for more until the last call is over, and ends the run at the deadline.
void Coordinator::gather(Clock::time_point now) {
  const int count = static_cast<int>(nodes_.size());
  if (count < options_.shared.min_nodes) last_call_.reset();
  if (count >= options_.shared.min_nodes && !last_call_) last_call_ = now + options_.last_call_timeout;
  if (count >= options_.shared.max_nodes || (last_call_ && (skip_last_call_ || now >= *last_call_))) {
    begin_attempt();
  } else if (!last_call_ && now >= deadline_) {
    end(FailureReport{
        .reason = fmt::format("only {} of {} nodes joined within {}{}", count, options_.shared.min_nodes,
                              in_words(options_.join_timeout), missing_nodes()),
        .restarts = restarts_});
  } else {
    next_tick_ = last_call_ ? *last_call_ : deadline_;
  }
}

void Coordinator::begin_attempt() {
  ++attempt_;
  choose_members();
  last_call_.reset();
  skip_last_call_ = false;
  suspect_.reset();
  new_node_joined_ = false;
  set_deadline(kReserveLimit);
  state_ = State::reserving;
  send(members_.front(), Reserve{});
}

// The nodes that joined first; members of the attempt before keep their numbers if possible.
// The first member serves the store of the run. Without numbers it is the host, without which no run continues anyway.
void Coordinator::choose_members() {
  members_.clear();
  for (auto& [node, member] : nodes_) {
    member.state = NodeState::waiting;
    member.epoch = 0;
    if (static_cast<int>(members_.size()) < options_.shared.max_nodes) members_.push_back(node);
  }
  if (options_.numbered) {
    std::ranges::sort(members_, {}, [&](Node node) { return *nodes_.at(node).info.node_rank; });
  } else {
    std::ranges::stable_partition(members_, [&](Node node) { return nodes_.at(node).info.is_host; });
  }
  for (std::size_t i = 0; i < members_.size(); ++i) nodes_.at(members_[i]).assignment = static_cast<int>(i);
}

std::vector<Coordinator::MemberNode> Coordinator::members() const {
  std::vector<MemberNode> found;
  int first_rank = 0;
  for (const Node node : members_) {
    const auto& member = nodes_.at(node);
    const auto& info = member.info;
    if (member.state != NodeState::lost)
      found.push_back({.node = node, .host = info.host, .first_rank = first_rank, .ranks = info.ranks});
    first_rank += info.ranks;
  }
  return found;
}

void Coordinator::on(Node node, const Reserved& reserved) {
  if (state_ != State::reserving || node != members_.front()) return;
  state_ = State::running;
  reserved_ = reserved;
  next_tick_.reset();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    nodes_.at(members_[i]).state = NodeState::running;
    send(members_[i], Start{assignment_of(i, reserved)});
  }
}

NodeAssignment Coordinator::assignment_of(std::size_t index, const Reserved& reserved) const {
  NodeAssignment assignment{
      .attempt = attempt_,
      .restarts = restarts_,
      .node_rank = static_cast<int>(index),
      .nodes = static_cast<int>(members_.size()),
      .world_size = 0,
      .role_world_size = 0,
      .master_addr = options_.master_addr.empty() ? reserved.address : options_.master_addr,
      .master_port = reserved.port,
      .store_port = reserved.store_port,
      .store_token = reserved.store_token,
      .epoch = nodes_.at(members_[index]).epoch};
  const std::string& role = nodes_.at(members_[index]).info.role;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& info = nodes_.at(members_[i]).info;
    const int of_role = info.role == role ? info.ranks : 0;
    assignment.world_size += info.ranks;
    assignment.role_world_size += of_role;
    if (i >= index) continue;
    assignment.first_rank += info.ranks;
    assignment.first_role_rank += of_role;
  }
  return assignment;
}

void Coordinator::on(Node /*node*/, const Failed& failed) {
  if (state_ != State::running || failed.attempt != attempt_) return;
  if (!failed.consequence) {
    fail(failed.report, headline(failed.report));
  } else if (!suspect_) {
    suspect_ = failed.report;
    set_deadline(kDoubtLimit);
  }
}

void Coordinator::on(Node /*node*/, const Replaced& replaced) {
  if (state_ != State::running || replaced.attempt != attempt_) return;
  if (any_is(NodeState::finished) || restarts_ >= options_.shared.max_restarts)
    return fail(replaced.report, headline(replaced.report));
  ++restarts_;
  for (const Node member : members_)
    send(member, Restarts{.attempt = attempt_, .restarts = restarts_, .rank = replaced.report.first.rank});
}

// Failures while the members stop are consequences, so only the first failure comes here.
void Coordinator::fail(const FailureReport& report, const std::string& notice) {
  restarts_ = std::max(restarts_, report.restarts);  // a node has replaced single ranks
  skip_last_call_ = true;
  if (restarts_ < options_.shared.max_restarts && !report.ends_run) {
    ++restarts_;
    stop_members(fmt::format("{}; restart {} of {}", notice, restarts_, options_.shared.max_restarts));
  } else {
    failure_ = report;
    stop_members(notice);
  }
}

void Coordinator::stop_members(const std::string& notice) {
  state_ = State::stopping;
  forget_lost_members();
  set_deadline(stop_limit());
  for (const Node node : members_)
    send(node, Stop{.attempt = attempt_, .notice = notice, .signal = stop_signal_});
  continue_when_all_stopped();
}

void Coordinator::on(Node node, const Stopped& stopped) {
  if (state_ != State::stopping || stopped.attempt != attempt_) return;
  nodes_.at(node).state = NodeState::stopped;
  continue_when_all_stopped();
}

void Coordinator::continue_when_all_stopped() {
  if (!all_are(NodeState::stopped)) return;
  if (failure_) {
    end(std::exchange(failure_, std::nullopt));
    return;
  }
  members_.clear();
  state_ = State::gathering;
  deadline_ = now_ + options_.join_timeout;
  gather(now_);
}

void Coordinator::on(Node node, const Finished& finished) {
  if (state_ != State::running || finished.attempt != attempt_) return;
  nodes_.at(node).state = NodeState::finished;
  if (all_are(NodeState::finished)) return end(std::nullopt);
  if (const auto* lost = lost_member())
    fail(lost->loss, headline(lost->loss));  // it would wait for these ranks
}

bool Coordinator::all_are(NodeState state) const {
  return std::ranges::all_of(members_, [&](Node node) { return nodes_.at(node).state == state; });
}

bool Coordinator::any_is(NodeState state) const {
  return std::ranges::any_of(members_, [&](Node node) { return nodes_.at(node).state == state; });
}

void Coordinator::end(std::optional<FailureReport> failure) {
  state_ = State::ended;
  next_tick_.reset();
  for (const auto& [node, member] : nodes_) send(node, End{failure, stop_signal_});
}

}  // namespace lockstep::launch
