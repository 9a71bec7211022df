// SPDX-License-Identifier: BSD-3-Clause

// Note [Order of use]
//
// A module does not say which layer runs next, so the tree learns the order from operators. The guard of a
// parameter calls use() before an operator reads it. Each time the group differs from the last one, the order
// of this pass gets an entry, and groups are freed and gathered. Three groups, from the second step on:
//
//                      forward                      backward
//     operators        a  a  b     a     c          c     a     b     a
//     order of use     A     B     A     C          C     A     B     A
//     gathered ahead   B     -     C     -          A     B     -     -
//     A is whole       |-----------------|                |-----------------|
//     B is whole             |-----|                            |-----|
//     C is whole                         |----------------|
//
// - Freed: every group that is not in use, unless this pass has used it less often than the last pass of its
//   kind did (A above). The first pass knows no counts and frees each group at every change. In backward,
//   a group is also freed when its gradients are ready.
// - Gathered ahead: what followed at this place in the last pass of its kind, if the entry here is the same.
//   Elsewhere, a group is gathered by its first use.
// - Forward ends with the first gradient or the first use in backward; backward ends in a callback of the
//   engine, which waits for reductions. Forwards without gradients teach nothing.
// - Gathers are collective calls, so all ranks must use groups in the same order. Otherwise the fingerprints
//   of the calls differ, which is a DesyncError.
// - Groups in shared memory are not gathered: the first use after a change of the shards makes all
//   of them current at once, between barriers.
#include "fsdp/tree.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "fsdp/parameter_group.h"
#include "intercept/nested_backward.h"
#include "runtime/run.h"

namespace lockstep::fsdp {

namespace {

// A forward has fewer uses of groups. More are forwards without backward, whose order teaches nothing.
constexpr std::size_t kMostUses = 100'000;

}  // namespace

void Tree::check() const {
  if (!failure_.empty()) throw Error(failure_);
}

void Tree::fail(const std::string& failure) {
  failure_ = intercept::why_forbidden(failure);
  for (auto* const group : groups) group->forbid_access(failure_);
}

void Tree::use(ParameterGroup& group) {
  check();
  if (!is_in_forward()) begin_backward();
  group.is_held = false;
  if (current_ == &group && group.is_current()) return;
  if (current_ != &group) switch_to(group);
  make_current(group);
  prefetch_after(group);
}

bool Tree::is_in_forward() const {
  return !in_backward() && torch::autograd::get_current_graph_task_id() == -1;
}

void Tree::make_current(ParameterGroup& group) {
  check();
  if (group.is_current()) return;
  if (group.is_shared()) {
    synchronize();
  } else {
    group.make_whole();
  }
}

void Tree::hold(ParameterGroup& group) {
  make_current(group);
  group.is_held = true;
}

void Tree::switch_to(ParameterGroup& group) {
  current_ = &group;
  const bool learns = in_backward() || c10::GradMode::is_enabled();
  if (learns && order_.size() < kMostUses) {
    ++group.runs;
    order_.push_back(&group);
  }
  for (auto* const other : groups) {
    if (other == &group || !other->is_whole() || other->is_held || !other->can_release(in_backward()))
      continue;
    const auto learned = in_backward() ? other->backward_runs : other->forward_runs;
    if (learns && other->runs < learned) continue;
    if (in_backward()) {
      other->release();
    } else {
      other->release_after_forward();
    }
  }
}

void Tree::prefetch_after(const ParameterGroup& group) {
  const auto prefetch = [](ParameterGroup& next) {
    if (!next.is_shared() && !next.is_current()) next.prefetch();
  };
  const auto& named = in_backward() ? group.backward_prefetch : group.forward_prefetch;
  for (const auto& each : named)
    if (const auto next = each.lock()) prefetch(*next);
  if (!named.empty()) return;
  const auto& learned = in_backward() ? backward_order_ : forward_order_;
  // Where this pass is in the learned order.
  const auto here = std::min(order_.size(), learned.size());
  if (here == 0 || learned[here - 1] != &group || here == learned.size()) return;
  prefetch(*learned[here]);
}

void Tree::begin_backward() {
  if (in_backward()) return;  // also in a pass that is nested in it
  check_module();
  clock_.end_forward();
  forward_order_ = std::exchange(order_, {});
  current_ = nullptr;
  for (auto* const group : groups) {
    group->forward_runs = std::exchange(group->runs, 0);
    group->begin_backward();
  }
  // Autograd destroys the callback, and with it the pass, without a call if the pass throws.
  const auto pass = std::make_shared<char>();
  pass_ = pass;
  intercept::in_outer_backward([pass, self = groups.front()->tree()] {
    intercept::note_wrapped_backward();
    torch::autograd::Engine::get_default_engine().queue_callback([pass, self] {
      const std::lock_guard lock(self->mutex);
      self->end_backward();
    });
  });
}

void Tree::end_backward() {
  clock_.end_gradients();
  for (auto* const group : groups) group->reduce();
  for (auto* const group : groups) group->finish_reduction();
  // Another rank may still read parameters that this rank's optimizer changes next.
  if (std::ranges::any_of(groups, &ParameterGroup::is_shared)) wait_for_ranks();
  for (auto* const group : groups) group->end_backward();
  reducing_ = nullptr;
  backward_order_ = std::exchange(order_, {});
  current_ = nullptr;
  pass_.reset();
  for (auto* const group : groups) group->backward_runs = std::exchange(group->runs, 0);
  in_forward_ = false;
  if (std::exchange(reduces_, false)) end_step();
}

void Tree::synchronize() {
  wait_for_ranks();
  std::vector<ParameterGroup*> copied;  // on all ranks of such a group, but not on those of another one
  for (auto* const each : groups) {
    const auto has_same_ranks = [&](const auto* other) {
      return other->shard_group().backend() == each->shard_group().backend();
    };
    if (each->make_current_in_shared_memory() && std::ranges::none_of(copied, has_same_ranks))
      copied.push_back(each);
  }
  for (const auto* each : copied) wait_for_ranks_of(*each);
}

void Tree::wait_for_ranks() {
  check();
  // Has the ranks of the others, which are experts.
  const auto ranks = [](const auto* group) { return group->is_shared() ? group->shard_group().size() : 0; };
  wait_for_ranks_of(**std::ranges::max_element(groups, {}, ranks));
}

void Tree::wait_for_ranks_of(const ParameterGroup& group) {
  CallTimes call{.launched = CallTimes::Clock::now(), .waiting = {}, .done = {}};
  call.waiting = call.launched;
  try {
    run(group.shard_group(), [&] { group.barrier(); });
    call.done = CallTimes::Clock::now();
    barrier_wait_ += call.wait();
    barrier_wait_total_ += call.wait();
    trace_wait("waiting for all ranks", call);
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
}

void Tree::before_reduction(ParameterGroup& group) {
  auto* const before = std::exchange(reducing_, &group);
  if (before != nullptr && before != &group) before->finish_reduction();
}

const ProcessGroup& Tree::split(const ProcessGroup& ranks, int size) {
  const auto is_it = [&](const Split& each) { return each.of == ranks.backend() && each.own.size() == size; };
  const auto earlier = std::ranges::find_if(splits_, is_it);
  if (earlier != splits_.end()) return earlier->own;
  std::vector<std::vector<int>> parts(static_cast<std::size_t>(ranks.size() / size));
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts[static_cast<std::size_t>(rank / size)].push_back(rank);
  auto own = runtime::require_run("fully_shard()").split(ranks, parts);
  splits_.push_back({ranks.backend(), std::move(own)});
  return splits_.back().own;
}

std::shared_ptr<const HostSplit> Tree::host_split(const ProcessGroup& ranks) {
  const auto earlier = std::ranges::find(host_splits_, ranks.backend(), &SplitOnHosts::of);
  if (earlier != host_splits_.end()) return earlier->own;
  host_splits_.push_back({ranks.backend(), std::make_shared<HostSplit>(split_by_hosts(ranks))});
  return host_splits_.back().own;
}

void Tree::forget(const ParameterGroup& group) {
  std::erase(groups, &group);
  std::erase(order_, &group);
  std::erase(forward_order_, &group);
  std::erase(backward_order_, &group);
  if (current_ == &group) current_ = nullptr;
  if (reducing_ == &group) reducing_ = nullptr;
  if (outermost == &group) outermost = nullptr;
}

}  // namespace lockstep::fsdp
