// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <ranges>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/fsdp/fully_shard.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/group_state.h"
#include "comm/mapped_memory.h"
#include "fsdp/group_splits.h"
#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"
#include "modules/agreement.h"
#include "modules/experts.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using fsdp::call_text;
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
        "{}: reshard_after_forward is {}; it must be a boolean or divide the {} ranks that "
        "the parameters are distributed over",
        call_text(where), wanted, ranks);
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
    throw_error<ArgumentError>("{}: a mesh of {} dimensions; it needs one (shards) or two (replicas, shards)",
                               call_text(where), options.mesh->ndim());
  }
  auto group = all_ranks.front();
  comm::refuse_with_python(comm::state_of(group), "fully_shard()", "use DistributedDataParallel");
  const bool can_share = comm::maps_memory(group), splits = fsdp::can_split_by_hosts(group);
  if (options.share_memory.value_or(false) && !can_share && !splits) {
    throw_error<ArgumentError>(
        "{}: share_memory needs ranks of one host and the shm backend, or the hierarchical "
        "backend and hosts with equally many ranks, more than one; the backend of group {} is {}",
        call_text(where), group.name(), group.backend_name());
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

bool has_ranks_of(const ProcessGroup& group, const ProcessGroup& other) {
  for (int rank = 0; rank < other.size(); ++rank) {
    const auto is_it = [&](int own) { return group.global_rank(own) == other.global_rank(rank); };
    if (std::ranges::none_of(std::views::iota(0, group.size()), is_it)) return false;
  }
  return true;
}

// The barriers of the tree are those of its largest group.
void check_shared_groups(const std::vector<GroupPointer>& earlier, const fsdp::GroupOptions& options) {
  if (!options.share_memory) return;
  for (const auto& group : earlier) {
    if (!group->is_shared() || has_ranks_of(options.shard_group, group->shard_group())) continue;
    throw_error<ArgumentError>(
        "{}: the module shares memory over group {}, but {} over group {}, which has other "
        "ranks; use one mesh, or for a module within it a part of the mesh",
        call_text(options.where), options.shard_group.name(), group->describe(), group->shard_group().name());
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
      .user = call_text(options.where),
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
      earlier->tree()->check();
      if (earlier->module() == &module) {
        throw_error<ArgumentError>("{}: the module is already sharded; keep the FSDPModule of the first call",
                                   call_text(options.where));
      }
      parts.earlier.push_back(earlier);
    } else if (std::ranges::none_of(ignored, is_same)) {
      own.push_back(each);
    }
  }
  check_shared_groups(parts.earlier, options);
  check_experts(module, own, options);
  if (!own.empty()) parts.own = ParameterGroup::create(own, options, tree);
  return parts;
}

}  // namespace

FSDPModule fully_shard(ModuleRef module, const FullyShardOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const auto ranks = ranks_of(options.mesh);
  const auto tree = std::make_shared<Tree>();
  auto [group, parts] = modules::tell_on_failure(ranks, "fully_shard()", where, [&] {
    auto checked = group_options(options, ranks, where);
    checked.module = &*module;
    auto found = parts_of(module, options.ignored_params, checked, tree);
    return std::pair(std::move(checked), std::move(found));
  });
  check_same_on_all_ranks(parts.own ? parts.own->text() : "", group);
  for (const auto& each : parts.earlier) tree->adopt(each->tree());
  FSDPModule result;
  result.own_ = std::move(parts.own);
  if (result.own_) tree->distribute_outermost(result.own_);
  result.set_entries(module);
  result.forward_ = std::make_shared<fsdp::ForwardPolicy>(
      &*module, options.mp_policy, fmt::format("{}: {}", call_text(where), module->name()));
  const auto all = result.groups(true);
  Tree::change(all, [&](ParameterGroup& each) { each.forward_policies.push_back(result.forward_); });
  if (!all.empty()) tree->watch(module, call_text(where), ranks);
  return result;
}

namespace {

using fsdp::group_of;

// Gives a tensor another device in place, and memory there.
void make_ordinary(const at::Tensor& tensor, c10::Device device) {
  const auto memory = at::empty(tensor.sizes(), tensor.options().device(device).requires_grad(false));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
}

// While it lives, a parameter on device meta is an ordinary tensor. Then its group has this rank's rows.
class OrdinaryParameter {
 public:
  OrdinaryParameter(const at::Tensor& parameter, c10::Device device)
      : parameter_(parameter),
        group_(group_of(parameter)),
        deferred_(parameter.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true)) {
    make_ordinary(parameter_, device);
  }
  ~OrdinaryParameter() {
    const auto values = parameter_.detach();
    parameter_.unsafeGetTensorImpl()->shallow_copy_from(deferred_);
    group_->set_initial(parameter_, values);
  }
  OrdinaryParameter(const OrdinaryParameter&) = delete;
  OrdinaryParameter& operator=(const OrdinaryParameter&) = delete;

 private:
  at::Tensor parameter_;
  std::shared_ptr<fsdp::ParameterGroup> group_;
  c10::intrusive_ptr<c10::TensorImpl> deferred_;
};

// Those that the module registers itself.
std::vector<at::Tensor> own_tensors_on_meta(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& list : {module.named_parameters(false), module.named_buffers(false)})
    for (const auto& [name, tensor] : modules::distinct(list))
      if (tensor.is_meta()) all.push_back(tensor);
  return all;
}

void initialize(torch::nn::Module& module, const ToEmptyOptions& options) {
  for (const auto& child : module.children()) initialize(*child, options);
  const auto tensors = own_tensors_on_meta(module);
  if (tensors.empty()) return;
  std::vector<std::unique_ptr<OrdinaryParameter>> parameters;
  for (const auto& tensor : tensors) {
    if (group_of(tensor) == nullptr) {
      make_ordinary(tensor, options.device);
    } else if (options.param_init_fn) {
      parameters.push_back(std::make_unique<OrdinaryParameter>(tensor, options.device));
    }
  }
  if (!options.param_init_fn) return;
  const WithoutPlace place;  // code of the program
  options.param_init_fn(module);
}

}  // namespace

void to_empty(ModuleRef module, const ToEmptyOptions& options, std::source_location where) {
  const CallerPlace place(where);
  initialize(module, options);
  for (const auto& parameter : module->parameters()) {
    const auto group = group_of(parameter);
    if (group == nullptr) continue;
    group->tree()->to_empty(*group, options.device, where);
  }
}

}  // namespace lockstep
