// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <set>

#include <lockstep/pipelining/schedule.h>

#include "base/throw_error.h"
#include "pipelining/plan_walk.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

Plan mapped(const Plan& plan, const auto& change) {
  Plan result;
  result.num_stages = plan.num_stages;
  result.n_microbatches = plan.n_microbatches;
  for (const auto& actions : plan.pipeline_order) result.pipeline_order.push_back(change(actions));
  return result;
}

Actions without_idle(const Actions& actions) {
  Actions busy;
  for (const auto& action : actions)
    if (action) busy.push_back(action);
  return busy;
}

// The next `count` stages in actions[begin..], each once; one more where a part of an overlap follows.
std::vector<int> next_stages(const Actions& actions, std::size_t begin, std::size_t count) {
  std::vector<int> stages;
  for (auto i = begin; i < actions.size() && stages.size() < count; ++i) {
    for_each_part(*actions[i], [&](const Action& part) {
      if (std::find(stages.begin(), stages.end(), part.stage_index) == stages.end())
        stages.push_back(part.stage_index);
    });
  }
  return stages;
}

std::size_t count_stages(const Actions& actions) {
  std::set<int> stages;
  for (const auto& action : actions)
    for_each_part(*action, [&](const Action& part) { stages.insert(part.stage_index); });
  return stages.size();
}

Actions with_unshard(const Actions& actions, std::size_t max_active) {
  const auto count = std::min(max_active, count_stages(actions));
  std::set<int> active;
  Actions result;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto next = next_stages(actions, i, count);
    for (auto stage = active.begin(); stage != active.end();) {
      const bool needed = std::find(next.begin(), next.end(), *stage) != next.end();
      if (!needed) result.push_back(Action{.stage_index = *stage, .computation_type = RESHARD});
      stage = needed ? std::next(stage) : active.erase(stage);
    }
    for (const int stage : next) {
      if (active.insert(stage).second)
        result.push_back(Action{.stage_index = stage, .computation_type = UNSHARD});
    }
    result.push_back(actions[i]);
  }
  for (const int stage : active) result.push_back(Action{.stage_index = stage, .computation_type = RESHARD});
  return result;
}

Actions with_reduce_grad(const Actions& actions, int n_microbatches) {
  std::map<int, int> done;
  Actions result;
  for (const auto& action : actions) {
    result.push_back(action);
    for_each_part(*action, [&](const Action& part) {
      if (ends_backward(part.computation_type) && ++done[part.stage_index] == n_microbatches)
        result.push_back(Action{.stage_index = part.stage_index, .computation_type = REDUCE_GRAD});
    });
  }
  return result;
}

// Runs the ranks in turn, each as far as its next action; a sender places the RECV of its peer.
class Messages {
 public:
  explicit Messages(const Plan& plan)
      : plan_(plan),
        rank_of_(stage_to_rank(plan)),
        next_(plan.pipeline_order.size()),
        inputs_(plan, 0),
        gradients_(plan, 0),
        result_(mapped(plan, [](const Actions&) { return Actions{}; })) {}

  Plan run() {
    for (bool more = true; more;) {
      more = false;
      bool progress = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) {
        if (next_[rank] == plan_.pipeline_order[rank].size()) continue;
        more = true;
        const auto& action = plan_.pipeline_order[rank][next_[rank]];
        if (action && !ready(*action)) continue;
        if (action) place(rank, *action);
        ++next_[rank];
        progress = true;
      }
      if (more && !progress) refuse();
    }
    return std::move(result_);
  }

 private:
  bool ready(const Action& action) {
    bool all = true;
    for_each_part(action, [&](const Action& part) {
      if (part.computation_type == FORWARD && part.stage_index > 0) all = all && inputs_.at(part) != 0;
      if (is_backward(part.computation_type) && part.stage_index < plan_.num_stages - 1)
        all = all && gradients_.at(part) != 0;
    });
    return all;
  }

  void place(std::size_t rank, const Action& action) {
    result_.pipeline_order[rank].push_back(action);
    for_each_part(action, [&](const Action& part) {
      const bool forward = part.computation_type == FORWARD;
      if (!forward && !is_backward(part.computation_type)) return;
      const int peer = part.stage_index + (forward ? 1 : -1);
      if (peer < 0 || peer == plan_.num_stages) return;
      (forward ? inputs_ : gradients_).at(peer, *part.microbatch_index) = 1;
      const int receiver = rank_of_[static_cast<std::size_t>(peer)];
      if (receiver == static_cast<int>(rank)) return;
      auto message = part;
      message.computation_type = forward ? SEND_F : SEND_B;
      result_.pipeline_order[rank].push_back(message);
      message.stage_index = peer;
      message.computation_type = forward ? RECV_F : RECV_B;
      result_.pipeline_order[static_cast<std::size_t>(receiver)].push_back(message);
    });
  }

  [[noreturn]] void refuse() const {
    std::string waiting;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const auto& actions = plan_.pipeline_order[rank];
      if (next_[rank] < actions.size())
        waiting += fmt::format("; rank {} waits at {}", rank, actions[next_[rank]]->str());
    }
    throw_error<ArgumentError>("add_send_recv: no rank of the plan can go on{}", waiting);
  }

  const Plan& plan_;
  std::vector<int> rank_of_;
  std::vector<std::size_t> next_;
  PerMicrobatch<char> inputs_, gradients_;  // whether they have been made for this stage
  Plan result_;
};

}  // namespace

std::vector<int> stage_to_rank(const Plan& plan) {
  std::vector<int> rank_of(static_cast<std::size_t>(plan.num_stages), -1);
  for (std::size_t rank = 0; rank < plan.pipeline_order.size(); ++rank) {
    for (const auto& action : plan.pipeline_order[rank]) {
      if (!action) continue;
      for_each_part(*action, [&](const Action& part) {
        if (part.stage_index < 0 || part.stage_index >= plan.num_stages) {
          throw_error<ArgumentError>("rank {}, action {}: the plan has the stages 0 to {}", rank, part.str(),
                                     plan.num_stages - 1);
        }
        auto& owner = rank_of[static_cast<std::size_t>(part.stage_index)];
        if (owner >= 0 && owner != static_cast<int>(rank)) {
          throw_error<ArgumentError>("rank {}, action {}: stage {} is also on rank {}", rank, part.str(),
                                     part.stage_index, owner);
        }
        owner = static_cast<int>(rank);
      });
    }
  }
  const auto missing = std::find(rank_of.begin(), rank_of.end(), -1);
  if (missing != rank_of.end())
    throw_error<ArgumentError>("stage {} is on no rank of the plan", missing - rank_of.begin());
  return rank_of;
}

Plan merge_bw(const Plan& plan) {
  return mapped(plan, [](const Actions& all) {
    const auto actions = without_idle(all);
    Actions merged;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      auto action = *actions[i];
      auto weight = action;
      weight.computation_type = BACKWARD_WEIGHT;
      if (action.computation_type == BACKWARD_INPUT && i + 1 < actions.size() && *actions[i + 1] == weight) {
        action.computation_type = FULL_BACKWARD;
        ++i;
      }
      merged.push_back(action);
    }
    return merged;
  });
}

Plan add_unshard_reshard(const Plan& plan, int max_active_stages) {
  if (max_active_stages < 1)
    throw_error<ArgumentError>("add_unshard_reshard: max_active_stages is {}; use 1 or more",
                               max_active_stages);
  return mapped(plan, [&](const Actions& actions) {
    return with_unshard(without_idle(actions), static_cast<std::size_t>(max_active_stages));
  });
}

Plan add_reduce_grad(const Plan& plan) {
  return mapped(plan, [&](const Actions& actions) {
    return with_reduce_grad(without_idle(actions), plan.n_microbatches);
  });
}

Plan add_send_recv(const Plan& plan) { return Messages(plan).run(); }

Plan add_comms(const Plan& plan) {
  const auto compute = mapped(plan, [](const Actions& actions) {
    auto kept = without_idle(actions);
    std::erase_if(kept, [](const auto& action) { return !action->is_compute_op(); });
    return kept;
  });
  return add_send_recv(add_reduce_grad(add_unshard_reshard(compute)));
}

}  // namespace lockstep::pipelining
