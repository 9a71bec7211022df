// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/step_history.h"

#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/util/hash.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "ddp/option_rules.h"
#include "modules/python_ranks.h"

namespace lockstep::ddp {

void StepHistory::forget() {
  order_ = Order::unknown;
  ready_order_.clear();
  graph_ = options_.static_graph ? Graph::first_step : Graph::dynamic;
  hook_counts_.assign(buckets_.parameters().size(), 0);
  unused_.clear();
}

void StepHistory::begin_backward(const std::vector<at::Tensor>& outputs, const GradientHooks& hooks) {
  if (order_ == Order::unknown) ready_order_.clear();
  if (in_first_static_step()) {
    hook_counts_.assign(hook_counts_.size(), 0);
  } else {
    hooks_left_ = hook_counts_;
  }
  if (options_.finds_unused()) unused_ = find_unreachable(outputs, hooks);
}

bool StepHistory::note_hook_call(std::size_t parameter) {
  if (in_first_static_step()) {
    ++hook_counts_[parameter];
    return false;
  }
  if (!options_.static_graph) return true;
  if (hooks_left_[parameter] == 0) {
    throw_error<Error>(
        "{}: the graph has changed: {} is used more often than in the first backward, which static_graph "
        "forbids; use find_unused_parameters instead",
        ddp_on_rank(group_), buckets_.parameters()[parameter].name);
  }
  return --hooks_left_[parameter] == 0;
}

void StepHistory::note_gradient(std::size_t parameter) {
  if (learns_order()) ready_order_.push_back(static_cast<std::int64_t>(parameter));
}

void StepHistory::find_unused() {
  unused_.clear();
  for (std::size_t i = 0; i < hook_counts_.size(); ++i)
    if (hook_counts_[i] == 0) unused_.push_back(i);
}

void StepHistory::end_step() {
  if (graph_ == Graph::fixed)
    for (const auto unused : unused_) note_gradient(unused);
  if (learns_order() && ready_order_.size() == hook_counts_.size()) order_ = Order::known;
  if (in_first_static_step()) graph_ = Graph::fixed;
}

void StepHistory::learn_order_of_construction() {
  if (!learns_order()) return;
  ready_order_.resize(hook_counts_.size());
  std::iota(ready_order_.begin(), ready_order_.end(), 0);
  order_ = Order::known;
}

BucketPlan StepHistory::plan() {
  const auto& parameters = buckets_.parameters();
  const auto limits = limits_of(options_).rebuilt;
  const auto device = buckets_.device();
  if (comm::has_python_ranks(group_))
    return modules::plan_of_rank_0(group_, plan_by_order(parameters, ready_order_, limits), device,
                                   options_.where);
  // Ranks may see their gradients in different orders; all must use one.
  const auto sent = at::tensor(ready_order_, at::TensorOptions().dtype(at::kLong)).to(device);
  const comm::CallSite site(options_.where, "order of the buckets");
  group_.broadcast(sent, 0, options_.where);
  const auto order = sent.to(at::kCPU);
  const auto* const first = order.const_data_ptr<std::int64_t>();
  ready_order_.assign(first, first + order.numel());
  return plan_by_order(parameters, ready_order_, limits);
}

std::vector<std::int64_t> StepHistory::order() const {
  if (order_ == Order::unknown) return {};
  auto order = ready_order_;
  order.push_back(digest_of_parameters());
  return order;
}

// An order of other parameters, which were frozen or not at the commit, is that of other buckets.
void StepHistory::restore_order(std::vector<std::int64_t> order) {
  if (order.size() != hook_counts_.size() + 1 || order.back() != digest_of_parameters()) return;
  order.pop_back();
  ready_order_ = std::move(order);
  order_ = Order::known;
}

std::int64_t StepHistory::digest_of_parameters() const {
  std::size_t digest = 0;
  for (const auto& each : buckets_.parameters())
    digest = c10::hash_combine(digest, std::hash<std::string>()(each.name));
  return static_cast<std::int64_t>(digest);
}

}  // namespace lockstep::ddp
