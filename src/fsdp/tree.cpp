// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/tree.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "ddp/autograd_hooks.h"
#include "fsdp/parameter_group.h"

namespace lockstep::fsdp {

void Tree::check() const {
  if (!failure_.empty()) {
    throw_error<Error>(
        "the parameters may have values of two steps, because a call of fully_shard() failed earlier: {}; "
        "load "
        "the last checkpoint into a new module",
        failure_);
  }
}

void Tree::use(ParameterGroup& group) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (in_backward) begin_backward();
  if (current_ == &group && group.is_current()) return;
  if (current_ != &group) switch_to(group);
  make_current(group);
  prefetch_after(group);
}

void Tree::make_current(ParameterGroup& group) {
  check();
  if (group.is_current()) return;
  if (group.is_shared()) {
    synchronize(group);
  } else {
    group.make_whole();
  }
}

void Tree::switch_to(ParameterGroup& group) {
  ++group.runs;
  order_.push_back(&group);
  current_ = &group;
  if (backward_ != -1) return;
  for (auto* const other : groups) {
    if (other == &group || !other->is_whole() || !other->reshard_after_forward()) continue;
    if (other->runs >= other->learned_runs) other->release();
  }
}

void Tree::prefetch_after(const ParameterGroup& group) {
  const auto& learned = backward_ == -1 ? forward_order_ : backward_order_;
  // Where this pass is in the learned order.
  const auto here = std::min(order_.size(), learned.size());
  if (here == 0 || learned[here - 1] != &group || here == learned.size()) return;
  auto* const next = learned[here];
  if (!next->is_shared() && !next->is_current()) next->prefetch();
}

void Tree::begin_backward() {
  const auto number = torch::autograd::get_current_graph_task_id();
  // A backward pass nested in this one has a higher number. A higher number outside of one means that the
  // backward pass before has thrown.
  if (backward_ != -1 && (number <= backward_ || ddp::in_nested_backward())) {
    backward_ = std::min(number, backward_);
    return;
  }
  forward_order_ = std::exchange(order_, {});
  current_ = nullptr;
  backward_ = number;
  for (auto* const group : groups) {
    group->learned_runs = std::exchange(group->runs, 0);
    group->begin_backward();
  }
  const auto self = groups.front()->tree();
  ddp::in_outer_backward([self] {
    torch::autograd::Engine::get_default_engine().queue_callback([self] {
      const std::lock_guard lock(self->mutex);
      self->end_backward();
    });
  });
}

void Tree::end_backward() {
  run([&] {
    for (auto* const group : groups) group->reduce_ready();
    for (auto* const group : groups) group->finish_reduction();
    // Another rank may still read parameters that this rank's optimizer changes next.
    const auto shared = std::ranges::find_if(groups, [](auto* group) { return group->is_shared(); });
    if (shared != groups.end()) (*shared)->shard_group().barrier();
  });
  for (auto* const group : groups) group->end_backward();
  reducing_ = nullptr;
  backward_order_ = std::exchange(order_, {});
  current_ = nullptr;
  backward_ = -1;
  for (auto* const group : groups) group->runs = 0;
}

void Tree::synchronize(const ParameterGroup& group) {
  run([&] {
    group.shard_group().barrier();
    bool copied = false;
    for (auto* const each : groups) copied = each->make_current_in_shared_memory() || copied;
    if (copied) group.shard_group().barrier();
  });
}

void Tree::on_reduction(ParameterGroup& group) {
  auto* const before = std::exchange(reducing_, &group);
  if (before != nullptr && before != &group) before->finish_reduction();
}

void Tree::run(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    failure_ = error.what();
    throw;
  }
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
