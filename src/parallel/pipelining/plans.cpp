// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/plans.h"

#include <algorithm>
#include <array>

#include "base/throw_error.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

enum class Need { one_stage, any, two_stages };

struct NamedPlan {
  std::string_view name;
  Need stages;
  Actions (*rank_actions)(const PlanSize&, int);
};

constexpr std::array kPlans{
    NamedPlan{"GPipe", Need::one_stage, gpipe},
    NamedPlan{"1F1B", Need::one_stage, one_f_one_b},
    NamedPlan{"Interleaved1F1B", Need::any, interleaved_1f1b},
    NamedPlan{"LoopedBFS", Need::any, looped_bfs},
    NamedPlan{"InterleavedZeroBubble", Need::any, interleaved_zero_bubble},
    NamedPlan{"ZBVZeroBubble", Need::two_stages, zbv_zero_bubble},
    NamedPlan{"DualPipeV", Need::two_stages, dual_pipe_v},
};

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

const NamedPlan& find_plan(std::string_view schedule_name) {
  auto name = lowered(schedule_name);
  if (name.starts_with("schedule")) name = name.substr(8);
  std::string names;
  for (const auto& plan : kPlans) {
    if (lowered(plan.name) == name) return plan;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", plan.name);
  }
  throw_error<ArgumentError>("no schedule \"{}\"; the names are {}", schedule_name, names);
}

void check_size(const NamedPlan& plan, const PlanSize& size) {
  if (size.ranks < 1 || size.local_stages < 1 || size.microbatches < 1) {
    throw_error<ArgumentError>("{}: {} ranks, {} stages on each rank, {} micro-batches; all are at least 1",
                               plan.name, size.ranks, size.local_stages, size.microbatches);
  }
  const int needed = plan.stages == Need::one_stage ? 1 : 2;
  if (plan.stages != Need::any && size.local_stages != needed) {
    throw_error<ArgumentError>("{}: {} stages on each rank; it has exactly {}", plan.name, size.local_stages,
                               needed);
  }
  const bool fills = plan.rank_actions == one_f_one_b || plan.rank_actions == dual_pipe_v;
  if (fills && size.microbatches < size.num_stages()) {
    throw_error<ArgumentError>("{}: {} micro-batches and {} stages; use at least as many micro-batches",
                               plan.name, size.microbatches, size.num_stages());
  }
  const int rounds = std::max(1, size.microbatches / size.ranks);
  const bool in_rounds =
      plan.rank_actions == interleaved_1f1b || plan.rank_actions == interleaved_zero_bubble;
  if (in_rounds && size.microbatches % rounds != 0) {
    throw_error<ArgumentError>(
        "{}: {} micro-batches on {} ranks are not a multiple of the {} rounds (micro-batches / ranks)",
        plan.name, size.microbatches, size.ranks, rounds);
  }
}

}  // namespace

Plan make_plan(std::string_view schedule_name, int pp_group_size, int n_local_stages, int n_microbatches) {
  const auto& named = find_plan(schedule_name);
  const PlanSize size{pp_group_size, n_local_stages, n_microbatches};
  check_size(named, size);
  Plan plan;
  plan.num_stages = size.num_stages();
  plan.n_microbatches = n_microbatches;
  for (int rank = 0; rank < pp_group_size; ++rank)
    plan.pipeline_order.push_back(named.rank_actions(size, rank));
  if (named.rank_actions == interleaved_zero_bubble) add_bubbles(plan);
  return named.stages == Need::one_stage ? add_reduce_grad(plan) : plan;
}

Actions gpipe(const PlanSize& size, int rank) {
  Actions actions;
  add_idle(actions, rank);
  for (int i = 0; i < size.microbatches; ++i) add(actions, rank, FORWARD, i);
  add_idle(actions, 3 * (size.ranks - 1 - rank));
  for (int i = 0; i < size.microbatches; ++i) add(actions, rank, FULL_BACKWARD, i);
  return actions;
}

Actions one_f_one_b(const PlanSize& size, int rank) {
  const int warmup = size.ranks - 1 - rank;
  Actions actions;
  add_idle(actions, rank);
  for (int i = 0; i < warmup; ++i) add(actions, rank, FORWARD, i);
  add_idle(actions, 2 * warmup);
  for (int i = warmup; i < size.microbatches; ++i) {
    add(actions, rank, FORWARD, i);
    add(actions, rank, FULL_BACKWARD, i - warmup);
  }
  for (int i = size.microbatches - warmup; i < size.microbatches; ++i) {
    add_idle(actions, 1);
    add(actions, rank, FULL_BACKWARD, i);
  }
  return actions;
}

Actions looped_bfs(const PlanSize& size, int rank) {
  Actions actions;
  add_idle(actions, rank);
  for (int stage = rank; stage < size.num_stages(); stage += size.ranks)
    for (int i = 0; i < size.microbatches; ++i) add(actions, stage, FORWARD, i);
  add_idle(actions, 2 * (size.ranks - 1 - rank));
  for (int stage = size.num_stages() - size.ranks + rank; stage >= 0; stage -= size.ranks)
    for (int i = size.microbatches - 1; i >= 0; --i) add(actions, stage, FULL_BACKWARD, i);
  return actions;
}

}  // namespace lockstep::pipelining
