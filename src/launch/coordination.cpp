// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/launch/coordination.h>

namespace lockstep::launch {
namespace {

// A launcher that was asked to stop its ranks and has not answered after so long never will.
constexpr std::chrono::hours kStopLimit{25};  // more than any grace period
// One that has not said where rank 0 is to be reached, which takes milliseconds.
constexpr std::chrono::seconds kReserveLimit{60};
// After a rank that says itself that another one was gone: for the news of that other one.
constexpr std::chrono::milliseconds kDoubtLimit{300};
// After a node that came later: for more of them.
constexpr std::chrono::seconds kJoinPause{1};

std::string in_words(const Coordination::Clock::duration& span) {
  return fmt::format("{:g} s", std::chrono::duration<double>(span).count());
}

}  // namespace

Coordination::Coordination(const CoordinationOptions& options, Clock::time_point now)
    : options_(options), deadline_(now + options.join_timeout), next_tick_(deadline_), now_(now) {}

void Coordination::join(Node node, const NodeInfo& info, Clock::time_point now) {
  now_ = now;
  if (const auto complaint = complaint_about(info); !complaint.empty()) {
    send(node, Refused{complaint});
    return;
  }
  nodes_[node] = {.info = info};
  if (state_ == State::gathering) {
    gather(now);
  } else if (state_ == State::running && has_room() && !joined_ && !doubted_) {
    joined_ = true;
    deadline_ = now + kJoinPause;
    next_tick_ = deadline_;
  }
}

// Who has finished shall not begin from the start again.
bool Coordination::has_room() const {
  return static_cast<int>(members_.size()) < options_.max_nodes && nodes_.size() > members_.size() &&
         std::ranges::none_of(members_, [&](Node node) { return nodes_.at(node).doing == Doing::finished; });
}

std::string Coordination::complaint_about(const NodeInfo& info) const {
  if (state_ == State::ended) return "the run has ended";
  if (options_.numbered != info.node_rank.has_value()) {
    return options_.numbered ? "the other nodes have a node-rank, this one has none"
                             : "this node has a node-rank, the others are numbered as they come";
  }
  if (!info.node_rank) return "";
  if (*info.node_rank >= options_.max_nodes) {
    return fmt::format("node-rank {} was given here, but the first node expects {} nodes", *info.node_rank,
                       options_.max_nodes);
  }
  for (const auto& [other, member] : nodes_) {
    if (member.info.node_rank != info.node_rank) continue;
    return fmt::format("node-rank {} is taken: {} has it already", *info.node_rank, member.info.host);
  }
  return "";
}

void Coordination::hear(Node node, const FromNode& message, Clock::time_point now) {
  now_ = now;
  if (const auto* leaving = std::get_if<Leaving>(&message)) {
    leave(node, leaving->reason);
    return;
  }
  if (!takes_part(node)) return;
  std::visit(
      [&](const auto& said) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(said)>, Leaving>) on(node, said);
      },
      message);
}

// Without the launcher at which they meet the others cannot go on either, so they need not begin to.
void Coordination::leave(Node node, const std::string& why) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || !found->second.info.is_meeting_point || ended()) {
    lose(node, why, now_);
    return;
  }
  const auto host = found->second.info.host;
  nodes_.erase(found);
  std::erase_if(members_, [&](Node member) { return member == node; });
  end(FailureReport{.reason = fmt::format("the launcher on {}, at which all nodes meet, ends: {}", host, why),
                    .host = host,
                    .restarts = restarts_});
}

void Coordination::lose(Node node, const std::string& why, Clock::time_point now) {
  now_ = now;
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || state_ == State::ended) return;
  const Member lost = found->second;
  const bool took_part = takes_part(node);
  nodes_.erase(found);
  if (!took_part) {
    if (state_ == State::gathering) gather(now);
    return;
  }
  std::erase(members_, node);
  if (state_ == State::stopping) {
    go_on_when_all_stopped();
  } else if (lost.doing == Doing::finished) {
    if (all_are(Doing::finished)) end(std::nullopt);
  } else {
    const auto what = fmt::format("node {} ({}) was lost: {}", lost.place, lost.info.host, why);
    fail({.reason = what, .host = lost.info.host, .restarts = restarts_}, what);
  }
}

void Coordination::tick(Clock::time_point now) {
  now_ = now;
  if (state_ == State::gathering) {
    gather(now);
    return;
  }
  if (!next_tick_ || now < deadline_) return;
  next_tick_.reset();
  if (state_ == State::reserving) {
    lose(members_.front(), "its launcher does not answer", now);
  } else if (state_ == State::stopping) {
    lose_silent_members();
  } else if (state_ == State::running) {
    fail_if_doubted();
  }
}

void Coordination::lose_silent_members() {
  const auto is_silent = [&](Node node) { return nodes_.at(node).doing != Doing::stopped; };
  for (const Node node : members_) {
    if (!is_silent(node)) continue;
    send(node, Refused{"its ranks were not stopped in time"});
    nodes_.erase(node);
  }
  std::erase_if(members_, [&](Node node) { return !nodes_.contains(node); });
  go_on_when_all_stopped();
}

void Coordination::fail_if_doubted() {
  if (doubted_) {
    fail(*doubted_, headline(*doubted_));
  } else if (joined_ && has_room()) {
    hurry_ = true;
    stop_members("a node joined: starting anew");
  }
}

std::vector<Coordination::Message> Coordination::take_messages() { return std::exchange(messages_, {}); }

bool Coordination::takes_part(Node node) const { return std::ranges::find(members_, node) != members_.end(); }

// Enough nodes: starts. Some more could come: waits for the last call to end. Too few for too long: ends.
void Coordination::gather(Clock::time_point now) {
  const int count = static_cast<int>(nodes_.size());
  if (count < options_.min_nodes) last_call_.reset();
  if (count >= options_.min_nodes && !last_call_) last_call_ = now + options_.last_call_timeout;
  if (count >= options_.max_nodes || (last_call_ && (hurry_ || now >= *last_call_))) {
    begin_attempt();
  } else if (!last_call_ && now >= deadline_) {
    end(FailureReport{.reason = fmt::format("only {} of {} nodes came within {}{}", count, options_.min_nodes,
                                            in_words(options_.join_timeout), missing_nodes()),
                      .restarts = restarts_});
  } else {
    next_tick_ = last_call_ ? *last_call_ : deadline_;
  }
}

std::string Coordination::missing_nodes() const {
  std::vector<int> missing;
  if (options_.numbered) {
    for (int rank = 0; rank < options_.max_nodes; ++rank) {
      const auto has_it = [&](const auto& node) { return node.second.info.node_rank == rank; };
      if (std::ranges::none_of(nodes_, has_it)) missing.push_back(rank);
    }
  }
  return missing.empty() ? "" : fmt::format(": node-rank {} is missing", fmt::join(missing, ", "));
}

void Coordination::begin_attempt() {
  ++attempt_;
  choose_members();
  last_call_.reset();
  hurry_ = false;
  doubted_.reset();
  joined_ = false;
  deadline_ = now_ + kReserveLimit;
  next_tick_ = deadline_;
  state_ = State::reserving;
  send(members_.front(), Reserve{});
}

// Those that came first; a node that was in the attempt before keeps its number where that can be.
void Coordination::choose_members() {
  members_.clear();
  for (auto& [node, member] : nodes_) {
    member.doing = Doing::waiting;
    if (static_cast<int>(members_.size()) < options_.max_nodes) members_.push_back(node);
  }
  if (options_.numbered) {
    std::ranges::sort(members_, {}, [&](Node node) { return *nodes_.at(node).info.node_rank; });
  }
  for (std::size_t i = 0; i < members_.size(); ++i) nodes_.at(members_[i]).place = static_cast<int>(i);
}

void Coordination::on(Node node, const Reserved& reserved) {
  if (state_ != State::reserving || node != members_.front()) return;
  state_ = State::running;
  next_tick_.reset();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    nodes_.at(members_[i]).doing = Doing::running;
    send(members_[i], Start{place_of(i, reserved)});
  }
}

NodePlace Coordination::place_of(std::size_t index, const Reserved& reserved) const {
  NodePlace place{.attempt = attempt_,
                  .restarts = restarts_,
                  .node_rank = static_cast<int>(index),
                  .nodes = static_cast<int>(members_.size()),
                  .world_size = 0,
                  .role_world_size = 0,
                  .master_addr = options_.master_addr.empty() ? reserved.address : options_.master_addr,
                  .master_port = reserved.port};
  const std::string& role = nodes_.at(members_[index]).info.role;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto& info = nodes_.at(members_[i]).info;
    const int of_role = info.role == role ? info.ranks : 0;
    place.world_size += info.ranks;
    place.role_world_size += of_role;
    if (i >= index) continue;
    place.first_rank += info.ranks;
    place.first_role_rank += of_role;
  }
  return place;
}

void Coordination::on(Node /*node*/, const Failed& failed) {
  if (state_ != State::running || failed.attempt != attempt_) return;
  if (!failed.consequence) {
    fail(failed.report, headline(failed.report));
  } else if (!doubted_) {
    doubted_ = failed.report;
    deadline_ = now_ + kDoubtLimit;
    next_tick_ = deadline_;
  }
}

// What is noticed while all stop is a consequence, so only the first failure comes here.
void Coordination::fail(const FailureReport& report, const std::string& notice) {
  hurry_ = true;
  if (restarts_ < options_.max_restarts) {
    ++restarts_;
    stop_members(fmt::format("{}; restart {} of {}", notice, restarts_, options_.max_restarts));
  } else {
    failure_ = report;
    stop_members(notice);
  }
}

void Coordination::stop_members(const std::string& notice) {
  state_ = State::stopping;
  deadline_ = now_ + kStopLimit;
  next_tick_ = deadline_;
  for (const Node node : members_) send(node, Stop{.attempt = attempt_, .notice = notice});
  go_on_when_all_stopped();
}

void Coordination::on(Node node, const Stopped& stopped) {
  if (state_ != State::stopping || stopped.attempt != attempt_) return;
  nodes_.at(node).doing = Doing::stopped;
  go_on_when_all_stopped();
}

void Coordination::go_on_when_all_stopped() {
  if (!all_are(Doing::stopped)) return;
  if (failure_) {
    end(std::exchange(failure_, std::nullopt));
    return;
  }
  members_.clear();
  state_ = State::gathering;
  deadline_ = now_ + options_.join_timeout;
  gather(now_);
}

void Coordination::on(Node node, const Finished& finished) {
  if (state_ != State::running || finished.attempt != attempt_) return;
  nodes_.at(node).doing = Doing::finished;
  if (all_are(Doing::finished)) end(std::nullopt);
}

bool Coordination::all_are(Doing doing) const {
  return std::ranges::all_of(members_, [&](Node node) { return nodes_.at(node).doing == doing; });
}

void Coordination::end(std::optional<FailureReport> failure) {
  state_ = State::ended;
  next_tick_.reset();
  for (const auto& [node, member] : nodes_) send(node, End{failure});
}

}  // namespace lockstep::launch
