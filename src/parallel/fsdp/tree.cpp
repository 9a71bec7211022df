// SPDX-License-Identifier: BSD-3-Clause

// Note [Order of use]
//
// A module does not say which layer runs next, so the tree learns the order from operators (UsePlan). The
// guard of a parameter calls use() before an operator reads it. Each time the group differs from the last
// one, the order of this pass gets an entry, and groups are freed and gathered. Three groups, from the second
// step on:
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
#include <mutex>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <lockstep/base/error.h>

#include "base/caller_place.h"
#include "base/limits.h"
#include "base/text.h"
#include "fsdp/parameter_group.h"
#include "intercept/nested_backward.h"

namespace lockstep::fsdp {
namespace {

// Whether the parameter's memory is that of its shards.
bool is_placed(const ShardedParameter& parameter) {
  const auto whole = parameter.lock_whole();
  return whole.defined() && intercept::memory_guard_of(whole) != nullptr;
}

// Why no parameter of the tree can be used.
std::string text_of_failure(const char* call, const std::exception& error, std::source_location where) {
  return with_line(fmt::format("{} failed: {}", call, first_line_of(exception_text(error))), where) +
         "; some parameters have no values any more, so build the module anew";
}

}  // namespace

// By value: its groups own the earlier tree until they are moved.
void Tree::adopt(std::shared_ptr<Tree> earlier) {  // NOLINT(performance-unnecessary-value-param)
  if (earlier.get() == this) return;
  const intercept::WithoutGuards no_operator_calls_us;
  const std::scoped_lock lock(mutex_, earlier->mutex_);
  for (const auto& group : earlier->living()) insert(group);
  earlier->groups_.clear();
  calls_.adopt(earlier->calls_);
}

void Tree::distribute_outermost(const std::shared_ptr<ParameterGroup>& group) {
  {
    const Lock lock(mutex_);
    insert(group);
    outermost_ = group.get();
  }
  try {
    group->distribute();
  } catch (const std::exception& error) {
    if (!std::ranges::any_of(group->parameters(), is_placed)) throw;  // nothing has changed
    const Lock lock(mutex_);
    failure_ = text_of_failure("fully_shard()", error, group->where());
    throw;
  }
}

void Tree::to_empty(ParameterGroup& group, c10::Device device, std::source_location where) {
  const Lock lock(mutex_);
  throw_if_failed();
  try {
    group.to_empty(device);
  } catch (const std::exception& error) {
    failure_ = text_of_failure("to_empty()", error, where);
    throw;
  }
}

void Tree::insert(const std::shared_ptr<ParameterGroup>& group) {
  group->move_to(shared_from_this(), groups_.size());
  groups_.push_back(group);
  plan_.add_group();
}

Tree::Groups Tree::living() const {
  Groups all;
  all.reserve(groups_.size());
  for (const auto& each : groups_)
    if (auto group = each.lock()) all.push_back(std::move(group));
  return all;
}

void Tree::watch(const torch::nn::Module& module, const std::string& caller,
                 const std::vector<ProcessGroup>& ranks) {
  modules::add_owner(weak_from_this());
  const Lock lock(mutex_);
  calls_.add(ranks);
  caller_ = caller;
  watched_.reset();
  if (const auto self = module.weak_from_this(); !self.expired())
    watched_.emplace(Watched{self, device::ModuleSnapshot(module)});
}

void Tree::check() const {
  const Lock lock(mutex_);
  throw_if_failed();
}

void Tree::throw_if_failed() const {
  if (!failure_.empty()) throw Error(failure_);
}

// Later uses of shared parameters throw.
void Tree::fail(const std::string& failure) {
  failure_ = intercept::why_forbidden(failure);
  for (const auto& group : living()) group->gather().forbid_access(failure_);
}

void Tree::check_parameters() {
  const Lock lock(mutex_);
  check_parameters_of(living());
}

intercept::MemoryGuard::Views Tree::use(ParameterGroup& group, const Operator& op) {
  const Lock lock(mutex_);
  if (is_in_forward()) {
    if (op.is_forward) begin_forward(group);
    for (const auto& policy : group.forward_policies) policy->check();
  }
  throw_if_failed();
  if (!is_in_forward()) begin_backward();
  group.gather().is_held = false;
  const bool is_switch = plan_.current() != group.number();
  if (is_switch) switch_to(group);
  if (is_switch || !group.gather().is_current()) {
    ensure_current(group);
    prefetch_after(group);
  }
  if (op.has_plain_views) group.stays_whole = true;
  return group.is_shared() || group.stays_whole ? intercept::MemoryGuard::Views::plain
                                                : intercept::MemoryGuard::Views::guarded;
}

// Also in a forward without gradients.
bool Tree::is_in_forward() const {
  return !in_backward() && torch::autograd::get_current_graph_task_id() == -1;
}

void Tree::make_current(ParameterGroup& group) {
  const Lock lock(mutex_);
  ensure_current(group);
}

void Tree::ensure_current(ParameterGroup& group) {
  throw_if_failed();
  if (group.gather().is_current()) return;
  if (group.is_shared()) {
    synchronize();
  } else {
    group.gather().make_whole(calls_);
  }
}

void Tree::require_can_rejoin() const {
  const Lock lock(mutex_);
  throw_if_failed();
  for (const auto& group : living()) group->require_can_rejoin();
}

void Tree::keep_settings() {
  const Lock lock(mutex_);
  for (const auto& group : living()) group->keep_settings();
}

void Tree::rejoin() {
  const Lock lock(mutex_);
  throw_if_failed();
  calls_.rejoin();
  plan_ = {};
  for (std::size_t i = 0; i < groups_.size(); ++i) plan_.add_group();
  in_forward_ = false;
  pass_.reset();
  reducing_.reset();
  for (const auto& group : living()) group->rejoin(calls_);
}

void Tree::hold(ParameterGroup& group) {
  const Lock lock(mutex_);
  ensure_current(group);
  group.gather().is_held = true;
}

void Tree::prefetch(ParameterGroup& group) {
  const Lock lock(mutex_);
  throw_if_failed();
  group.gather().prefetch(calls_);
}

// Returns when no rank reads shared parameters.
void Tree::reshard(ParameterGroup& group) {
  const Lock lock(mutex_);
  if (group.is_shared()) wait_for_ranks();
  group.gather().release(calls_);
  group.gather().invalidate();
}

void Tree::switch_to(ParameterGroup& group) {
  const bool learns = in_backward() || c10::GradMode::is_enabled();
  plan_.use(group.number(), learns);
  for (const auto& other : living()) {
    auto& gather = other->gather();
    if (other.get() == &group || !gather.is_whole() || gather.is_held) continue;
    if (!other->can_release(pass(), other.get() == outermost_)) continue;
    if (learns && plan_.expects(other->number(), pass())) continue;
    pass() == UsePlan::backward ? gather.release(calls_) : gather.release_after_forward(calls_);
  }
}

void Tree::prefetch_after(const ParameterGroup& group) {
  const auto& named = group.prefetch[pass()];
  for (const auto& each : named)
    if (const auto next = each.lock()) next->gather().prefetch(calls_);
  if (!named.empty()) return;
  const auto next = plan_.next(pass());
  if (!next) return;
  if (const auto group_to_gather = groups_[*next].lock()) group_to_gather->gather().prefetch(calls_);
}

void Tree::begin_forward() {
  const Lock lock(mutex_);
  if (in_forward_ || in_backward()) return;
  check_module_of(living());
}

// Before an operator of a forward.
void Tree::begin_forward(const ParameterGroup& group) {
  if (calls_.record.has_complete_trace()) write_trace(group);
  if (in_forward_ || !c10::GradMode::is_enabled()) return;
  check_module_of(living());
  in_forward_ = true;
  calls_.record.begin_forward();
}

void Tree::write_trace(const ParameterGroup& group) {
  const auto all = living();
  const auto outermost = std::ranges::find(all, outermost_, [](const auto& each) { return each.get(); });
  const auto& first = outermost == all.end() ? group : **outermost;
  calls_.record.write_trace(first.shard_group(), first.is_replica(), first.where());
}

void Tree::before_gradient() {
  const Lock lock(mutex_);
  begin_backward();
}

// Before the first gradient, or the first use, in a backward pass.
void Tree::begin_backward() {
  if (in_backward()) return;  // also in a pass that is nested in it
  const auto all = living();
  check_module_of(all);
  calls_.record.end_forward(true);
  plan_.end(UsePlan::forward);
  for (const auto& group : all) group->gradients().begin_backward();
  // Autograd destroys the callback, and with it the pass, without a call if the pass throws.
  const auto pass = std::make_shared<char>();
  pass_ = pass;
  intercept::in_outer_backward([pass, self = shared_from_this()] {
    intercept::note_wrapped_backward();
    torch::autograd::Engine::get_default_engine().queue_callback([pass, self] { self->end_backward(); });
  });
}

void Tree::on_gradient_ready(ParameterGroup& group, std::size_t parameter) {
  const Lock lock(mutex_);
  if (group.gradients().add_ready(parameter)) reduce(group);
}

void Tree::reduce(ParameterGroup& group) {
  auto gradients = group.gradients().take(calls_);
  if (gradients.parameters.empty()) return;
  // A rank has whole gradients of one group at a time.
  const auto before = std::exchange(reducing_, group.weak_from_this()).lock();
  if (before != nullptr && before.get() != &group) before->gradients().finish(calls_);
  group.reduce(std::move(gradients), calls_);
}

void Tree::end_backward() {
  const Lock lock(mutex_);
  calls_.record.end_gradients();
  const auto all = living();
  for (const auto& group : all) reduce(*group);
  for (const auto& group : all) group->gradients().finish(calls_);
  // Another rank may still read parameters that this rank's optimizer changes next.
  if (std::ranges::any_of(all, &ParameterGroup::is_shared)) wait_for_ranks();
  for (const auto& group : all) group->end_backward(calls_);
  reducing_.reset();
  pass_.reset();
  plan_.end(UsePlan::backward);
  in_forward_ = false;
  if (!calls_.record.end_pass()) return;
  for (const auto& group : all) group->traffic().end_step();
}

// Makes shared groups current together: all ranks leave the last step, and enter the next.
void Tree::synchronize() {
  wait_for_ranks();
  Groups written;  // on all ranks of such a group, but not on those of another one
  for (const auto& each : living()) {
    const auto has_same_ranks = [&](const auto& other) {
      return other->shard_group().backend() == each->shard_group().backend();
    };
    if (each->is_shared() && each->gather().make_whole(calls_) &&
        std::ranges::none_of(written, has_same_ranks))
      written.push_back(each);
  }
  for (const auto& each : written) wait_for_ranks_of(*each);
}

void Tree::wait_for_ranks() {
  throw_if_failed();
  // Has the ranks of the others, which are experts.
  const auto ranks = [](const auto& group) { return group->is_shared() ? group->shard_group().size() : 0; };
  const auto all = living();
  wait_for_ranks_of(**std::ranges::max_element(all, {}, ranks));
}

// A failure may leave parameters of two steps.
void Tree::wait_for_ranks_of(const ParameterGroup& group) {
  CallTimes call{.launched = CallTimes::Clock::now(), .waiting = {}, .done = {}};
  call.waiting = call.launched;
  try {
    calls_.run(group.shard_group(), [&] { group.shard_group().barrier(group.where()); });
    call.done = CallTimes::Clock::now();
    calls_.record.add_barrier(call);
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
}

}  // namespace lockstep::fsdp
