// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/fsdp/fully_shard.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/mapped_memory.h"
#include "fsdp/forward_policy.h"
#include "fsdp/host_split.h"
#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"
#include "modules/agreement.h"
#include "modules/experts.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using fsdp::group_of;
using fsdp::ParameterGroup;
using fsdp::Tree;
using GroupPointer = std::shared_ptr<ParameterGroup>;

// reshard_after_forward without and with its number.
std::pair<std::optional<bool>, int> resharding(const FullyShardOptions& options, int ranks,
                                               std::source_location where) {
  if (!options.reshard_after_forward) return {std::nullopt, 0};
  if (const auto* const reshards = std::get_if<bool>(&*options.reshard_after_forward)) return {*reshards, 0};
  const auto wanted = std::get<int>(*options.reshard_after_forward);
  if (wanted < 1 || ranks % wanted != 0) {
    throw_error<ArgumentError>(
        "{}:{}: fully_shard(): reshard_after_forward is {}; it must be a boolean or divide the {} ranks that "
        "the parameters are distributed over",
        where.file_name(), where.line(), wanted, ranks);
  }
  return {wanted > 1, wanted == ranks ? 0 : wanted};
}

// The shard group, then the replicas if there are any.
std::vector<ProcessGroup> ranks_of(const std::optional<DeviceMesh>& mesh) {
  if (!mesh) return {runtime::required_group({}, "fully_shard()")};
  std::vector<ProcessGroup> ranks{mesh->get_group(static_cast<int>(mesh->ndim()) - 1)};
  if (mesh->ndim() == 2) ranks.push_back(mesh->get_group(0));
  return ranks;
}

fsdp::GroupOptions group_options(const FullyShardOptions& options, const std::vector<ProcessGroup>& all_ranks,
                                 std::source_location where) {
  if (options.mesh && options.mesh->ndim() > 2) {
    throw_error<ArgumentError>(
        "{}:{}: fully_shard(): a mesh of {} dimensions; it needs one (shards) or two (replicas, shards)",
        where.file_name(), where.line(), options.mesh->ndim());
  }
  auto group = all_ranks.front();
  comm::refuse_with_python(comm::state_of(group), "fully_shard()", "use DistributedDataParallel");
  const bool can_share = comm::maps_memory(group), splits = fsdp::can_split_by_hosts(group);
  if (options.share_memory.value_or(false) && !can_share && !splits) {
    throw_error<ArgumentError>(
        "{}:{}: fully_shard(): share_memory needs ranks of one host and the shm backend, or the hierarchical "
        "backend and hosts with equally many ranks, more than one; the backend of group {} is {}",
        where.file_name(), where.line(), group.name(), group.backend_name());
  }
  const bool shares = options.share_memory.value_or(true);
  auto [reshards, ranks] = resharding(options, group.size(), where);
  if (shares && splits && ranks > 0 && ranks <= fsdp::ranks_of_host(group)) {
    reshards = false;  // the host has one copy, of which each rank's share is at most that part
    ranks = 0;
  }
  return {.shard_group = std::move(group),
          .replicas = all_ranks.size() > 1 ? std::optional(all_ranks.back()) : std::nullopt,
          .reshard_after_forward = reshards,
          .ranks_after_forward = ranks,
          .shard_placement_fn = options.shard_placement_fn,
          .mp_policy = options.mp_policy,
          .offload_policy = options.offload_policy,
          .share_memory = shares && can_share,
          .gathers_on_hosts = shares && splits,
          .where = where};
}

void move_into(const std::shared_ptr<Tree>& tree, const GroupPointer& group) {
  const auto old = group->tree();
  if (old == tree) return;
  for (auto* const each : old->groups) {
    tree->groups.push_back(each);
    each->move_to(tree);
  }
  old->groups.clear();
  tree->adopt_agreements(*old);
}

bool has_ranks_of(const ProcessGroup& group, const ProcessGroup& other) {
  for (int rank = 0; rank < other.size(); ++rank) {
    const auto is_it = [&](int own) { return group.global_rank(own) == other.global_rank(rank); };
    if (std::ranges::none_of(std::views::iota(0, group.size()), is_it)) return false;
  }
  return true;
}

// The barriers of the tree are those of its largest group.
void check_shared_groups(const Tree& tree, const fsdp::GroupOptions& options) {
  if (!options.share_memory) return;
  for (const auto* const group : tree.groups) {
    if (!group->is_shared() || has_ranks_of(options.shard_group, group->shard_group())) continue;
    throw_error<ArgumentError>(
        "{}:{}: fully_shard(): the module shares memory over group {}, but {} over group {}, which has other "
        "ranks; use one mesh, or for a module within it a part of the mesh",
        options.where.file_name(), options.where.line(), options.shard_group.name(), group->describe(),
        group->shard_group().name());
  }
}

void check_experts(const torch::nn::Module& module, const std::vector<modules::NamedTensor>& own,
                   const fsdp::GroupOptions& options) {
  const auto check = [&](const ProcessGroup& group) {
    modules::refuse_experts(
        module, own,
        {.name = "fully_shard()",
         .group = group,
         .where = options.where,
         .advice = "call fully_shard(*moe->experts, {.mesh = ...}) before, with the ranks that "
                   "have the same experts, or give it as one of ignored_params"});
  };
  check(options.shard_group);
  if (options.replicas) check(*options.replicas);
}

std::string text_of(const fsdp::GroupOptions& options) {
  const auto dtype = [](const auto& each) { return each ? c10::toString(*each) : "-"; };
  const auto reshards = [&]() -> std::string {
    if (!options.reshard_after_forward) return "default";
    if (options.ranks_after_forward > 0) return std::to_string(options.ranks_after_forward);
    return *options.reshard_after_forward ? "true" : "false";
  };
  return fmt::format(
      "options of fully_shard\tranks={} replicas={} reshard_after_forward={} param_dtype={} reduce_dtype={} "
      "output_dtype={} cast_forward_inputs={} share_memory={} gathers_on_hosts={}\n",
      options.shard_group.size(), options.replicas ? options.replicas->size() : 1, reshards(),
      dtype(options.mp_policy.param_dtype), dtype(options.mp_policy.reduce_dtype),
      dtype(options.mp_policy.output_dtype), options.mp_policy.cast_forward_inputs, options.share_memory,
      options.gathers_on_hosts);
}

// `parameters`: of the call, described in lines.
void check_same_on_all_ranks(const std::string& parameters, const fsdp::GroupOptions& options) {
  const modules::ModuleText own{
      .user = fmt::format("{}:{}: fully_shard()", options.where.file_name(), options.where.line()),
      .lines = parameters + text_of(options),
      .advice = "Make the same calls for the same module with the same options on every rank"};
  const auto replicas = options.replicas ? std::vector{*options.replicas} : std::vector<ProcessGroup>{};
  modules::tell_on_failure(replicas, "fully_shard()", options.where, [&] {
    modules::check_same_on_all_ranks(options.shard_group, own, options.where);
  });
  for (const auto& group : replicas) modules::check_same_on_all_ranks(group, own, options.where);
}

// Parameters in the order of PyTorch's flat layout: those of children before those of the module.
void visit_parameters(const torch::nn::Module& module, const std::string& prefix,
                      std::vector<modules::NamedTensor>& all) {
  for (const auto& child : module.named_children())
    visit_parameters(*child.value(), prefix + child.key() + ".", all);
  for (const auto& own : module.named_parameters(false)) {
    const auto is_known = [&](const auto& each) { return each.tensor.is_same(own.value()); };
    if (std::ranges::none_of(all, is_known)) all.push_back({prefix + own.key(), own.value()});
  }
}

// What a call shards.
struct Parts {
  GroupPointer own;                   // of parameters that no earlier call has; null without such
  std::vector<GroupPointer> earlier;  // of calls for modules within this one
};

// Checks the call. Changes nothing.
Parts parts_of(const torch::nn::Module& module, const std::vector<at::Tensor>& ignored,
               const fsdp::GroupOptions& options, const std::shared_ptr<Tree>& tree) {
  Parts parts;
  std::vector<modules::NamedTensor> ordered, own;
  visit_parameters(module, "", ordered);
  for (const auto& each : ordered) {
    const auto is_same = [&](const auto& tensor) { return tensor.is_same(each.tensor); };
    if (const auto earlier = group_of(each.tensor)) {
      if (earlier->module() == &module) {
        throw_error<ArgumentError>(
            "{}:{}: fully_shard(): the module is already sharded; keep the FSDPModule of the first call",
            options.where.file_name(), options.where.line());
      }
      parts.earlier.push_back(earlier);
    } else if (std::ranges::none_of(ignored, is_same)) {
      own.push_back(each);
    }
  }
  for (const auto& each : parts.earlier) check_shared_groups(*each->tree(), options);
  check_experts(module, own, options);
  if (!own.empty()) parts.own = ParameterGroup::create(own, options, tree);
  return parts;
}

std::size_t index_in(const ParameterGroup& group, const at::Tensor& tensor) {
  const auto& all = group.parameters();
  const auto it =
      std::ranges::find_if(all, [&](const auto& each) { return each.lock_whole().is_same(tensor); });
  return static_cast<std::size_t>(it - all.begin());
}

}  // namespace

FSDPModule fully_shard(const torch::nn::Module& module, const FullyShardOptions& options,
                       std::source_location where) {
  const auto ranks = ranks_of(options.mesh);
  const auto tree = std::make_shared<Tree>();
  auto [group, parts] = modules::tell_on_failure(ranks, "fully_shard()", where, [&] {
    auto checked = group_options(options, ranks, where);
    checked.module = &module;
    auto found = parts_of(module, options.ignored_params, checked, tree);
    return std::pair(std::move(checked), std::move(found));
  });
  check_same_on_all_ranks(parts.own ? parts.own->text() : "", group);
  for (const auto& each : parts.earlier) move_into(tree, each);
  FSDPModule result;
  result.own_ = std::move(parts.own);
  if (result.own_) {
    result.own_->distribute();
    tree->groups.push_back(result.own_.get());
    tree->outermost = result.own_.get();
  }
  result.set_entries(module);
  result.forward_ = std::make_shared<fsdp::ForwardPolicy>(
      &module, options.mp_policy,
      fmt::format("{}:{}: fully_shard(): {}", where.file_name(), where.line(), module.name()));
  for (const auto& each : result.groups(true)) each->forward_policies.push_back(result.forward_);
  if (!tree->groups.empty())
    tree->watch(module, fmt::format("{}:{}: fully_shard()", where.file_name(), where.line()), ranks);
  return result;
}

void FSDPModule::set_entries(const torch::nn::Module& module) {
  const auto experts = modules::expert_tensors(module);
  for (const auto& [name, tensor] : modules::distinct(module.named_parameters())) {
    if (auto owner = group_of(tensor)) {
      const auto index = index_in(*owner, tensor);
      entries_.push_back({.name = name, .group = std::move(owner), .index = index});
    } else {
      entries_.push_back({.name = name, .ignored = tensor});
    }
    const auto is_same = [&, &own = tensor](const auto& each) { return each.tensor.is_same(own); };
    const auto expert = std::ranges::find_if(experts, is_same);
    if (expert != experts.end()) entries_.back().expert_ranks = expert->ranks;
  }
  module_ = module.weak_from_this();
  for (const auto& [name, tensor] : modules::distinct(module.named_buffers()))
    buffers_.push_back({name, tensor});
  aliases_ = modules::aliases_of(module);
}

std::optional<FSDPModule> FSDPModule::find(const torch::nn::Module& module) {
  FSDPModule found;
  found.set_entries(module);
  const auto all = found.groups(true);
  if (all.empty()) return std::nullopt;
  const auto own = std::ranges::find_if(all, [&](const auto& group) { return group->module() == &module; });
  if (own != all.end()) found.own_ = *own;
  const auto& policies = all.front()->forward_policies;
  const auto policy =
      std::ranges::find_if(policies, [&](const auto& each) { return each->module == &module; });
  if (policy != policies.end()) found.forward_ = *policy;
  return found;
}

std::vector<at::Tensor> FSDPModule::parameters() const {
  std::vector<at::Tensor> all;
  for (auto& [name, parameter] : named_parameters()) all.push_back(std::move(parameter));
  return all;
}

std::vector<FSDPModule::NamedParameter> FSDPModule::named_parameters() const {
  std::vector<NamedParameter> all;
  for (const auto& entry : entries_)
    all.push_back({entry.name, entry.group ? entry.group->parameters()[entry.index].shard : entry.ignored});
  return all;
}

std::vector<GroupPointer> FSDPModule::groups(bool recurse) const {
  if (!recurse) return own_ ? std::vector{own_} : std::vector<GroupPointer>{};
  std::vector<GroupPointer> all;
  for (const auto& entry : entries_) {
    if (entry.group && std::ranges::find(all, entry.group) == all.end()) all.push_back(entry.group);
  }
  return all;
}

void FSDPModule::zero_grad() const {
  for (const auto& group : groups(true)) group->zero_grad();
  for (const auto& entry : entries_) {
    if (!entry.group) entry.ignored.mutable_grad().reset();
  }
}

void FSDPModule::unshard() const {
  if (!own_) return;
  auto& tree = *own_->tree();
  const std::lock_guard lock(tree.mutex);
  tree.hold(*own_);
}

UnshardHandle FSDPModule::unshard_async() const {
  UnshardHandle handle;
  if (!own_) return handle;
  const std::lock_guard lock(own_->tree()->mutex);
  own_->tree()->check();
  if (!own_->is_shared() && !own_->is_current()) own_->prefetch();
  handle.group_ = own_;
  return handle;
}

void UnshardHandle::wait() {
  const auto group = std::exchange(group_, nullptr);
  if (!group) return;
  const std::lock_guard lock(group->tree()->mutex);
  group->tree()->hold(*group);
}

std::vector<std::weak_ptr<ParameterGroup>> FSDPModule::groups_to_prefetch(
    const std::vector<FSDPModule>& modules, const char* function, std::source_location where) const {
  std::vector<std::weak_ptr<ParameterGroup>> all;
  for (const auto& module : modules) {
    if (!own_ || !module.own_ || module.own_->tree() != own_->tree()) {
      throw_error<ArgumentError>(
          "{}:{}: {}: call it after fully_shard() of the module that has all of these modules, each with "
          "parameters of its own",
          where.file_name(), where.line(), function);
    }
    all.emplace_back(module.own_);
  }
  return all;
}

void FSDPModule::set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules,
                                                 std::source_location where) const {
  auto all = groups_to_prefetch(modules, "set_modules_to_forward_prefetch()", where);
  if (own_) own_->forward_prefetch = std::move(all);
}

void FSDPModule::set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules,
                                                  std::source_location where) const {
  auto all = groups_to_prefetch(modules, "set_modules_to_backward_prefetch()", where);
  if (own_) own_->backward_prefetch = std::move(all);
}

void FSDPModule::reshard() const {
  if (own_) return own_->reshard();
  const auto all = groups(true);
  const auto shared = std::ranges::find_if(all, [](const auto& group) { return group->is_shared(); });
  if (shared != all.end()) (*shared)->reshard();
}

void FSDPModule::set_requires_gradient_sync(bool requires_gradient_sync, bool recurse) const {
  for (const auto& group : groups(recurse)) {
    group->requires_gradient_sync = requires_gradient_sync;
    group->requires_all_reduce = requires_gradient_sync;
    if (!group->is_deferred()) group->set_gradient_dtypes();
  }
}

void FSDPModule::set_requires_all_reduce(bool requires_all_reduce, bool recurse) const {
  for (const auto& group : groups(recurse)) group->requires_all_reduce = requires_all_reduce;
}

void FSDPModule::set_gradient_divide_factor(double factor) const {
  if (!(factor > 0) || std::isinf(factor))
    throw_error<ArgumentError>("FSDPModule::set_gradient_divide_factor(): the factor is {}", factor);
  if (own_) own_->gradient_divide_factor = factor;
}

void FSDPModule::set_reshard_after_backward(bool reshard_after_backward, bool recurse) const {
  for (const auto& group : groups(recurse)) group->reshard_after_backward = reshard_after_backward;
}

void FSDPModule::set_reshard_after_forward(bool reshard_after_forward, bool recurse) const {
  for (const auto& group : groups(recurse)) group->set_reshard_after_forward(reshard_after_forward);
}

FSDPStats FSDPModule::stats() const {
  FSDPStats stats;
  const auto all = groups(true);
  if (all.empty()) return stats;
  const std::lock_guard lock(all.front()->tree()->mutex);
  all.front()->tree()->add_to(stats);
  for (const auto& group : all) {
    FSDPStats::Group each{.last = group->traffic().last, .total = group->traffic().total};
    for (const auto& entry : entries_)
      if (entry.group == group) each.parameters.push_back(entry.name);
    stats.groups.push_back(std::move(each));
  }
  return stats;
}

void FSDPModule::trace(const std::string& path, int steps) const {
  const auto all = groups(true);
  if (all.empty()) throw ArgumentError("trace: fully_shard() has no parameter of the module");
  const std::lock_guard lock(all.front()->tree()->mutex);
  all.front()->tree()->begin_trace(path, steps);
  for (const auto& group : all) {
    const auto first = std::ranges::find(entries_, group, &Entry::group);
    group->set_traced_name(first->name);
  }
}

bool FSDPModule::shares_memory() const {
  return std::ranges::any_of(groups(true), [](const auto& group) { return group->is_shared(); });
}

}  // namespace lockstep
