// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/runtime/default_group.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "fsdp/parameter_group.h"
#include "fsdp/sharded_state_dict.h"
#include "fsdp/tree.h"
#include "modules/experts.h"
#include "modules/rank_part.h"
#include "optim/unaveraged.h"
#include "serialize/safetensors_folder.h"

namespace lockstep {
namespace fsdp {

// What FSDPModule knows about its parameters.
struct Entries {
  static StateEntries of(const FSDPModule& module, bool with_ignored = true) {
    StateEntries all{.owner = "the FSDPModule's", .parameters = {}, .buffers = {}};
    check(module);
    for (const auto& entry : module.entries_) {
      if (!entry.group) {
        if (with_ignored) all.parameters.push_back(entry_of_parameter(entry.name, entry.ignored));
        if (with_ignored) all.parameters.back().expert_ranks = entry.expert_ranks;
        continue;
      }
      const auto& parameter = entry.group->parameters()[entry.index];
      entry.group->tree()->check();
      if (entry.group->is_deferred()) {
        throw_error<ArgumentError>("{} is on device meta and has no values; call lockstep::to_empty() before",
                                   entry.name);
      }
      all.parameters.push_back(
          {entry.name, parameter.shard, parameter.full_sizes, parameter.cuts, entry.expert_ranks});
    }
    if (const auto now = module.module_.lock()) {
      all.buffers = modules::distinct(now->named_buffers());
    } else {
      for (const auto& [name, buffer] : module.buffers_) all.buffers.push_back({name, buffer});
    }
    all.aliases = module.aliases_;
    return all;
  }
  // The module still has the parameters that the entries are of.
  static void check(const FSDPModule& module) {
    const auto all = module.groups(true);
    if (!all.empty()) all.front()->tree()->check_parameters();
  }
  // Returns when no rank reads the parameters.
  static void reshard(const FSDPModule& module) {
    for (const auto& group : module.groups(true)) group->tree()->reshard(*group);
  }
};

StateEntries entries_of(const torch::nn::Module& module, bool with_ignored) {
  if (const auto sharded = FSDPModule::find(module)) return Entries::of(*sharded, with_ignored);
  StateEntries all{.owner = "the module's", .parameters = {}, .buffers = {}};
  const auto experts = modules::expert_tensors(module);
  for (const auto& [name, tensor] : modules::distinct(module.named_parameters())) {
    all.parameters.push_back(entry_of_parameter(name, tensor));
    const auto expert = std::ranges::find(experts, name, &modules::ExpertTensor::name);
    if (expert != experts.end()) all.parameters.back().expert_ranks = expert->ranks;
  }
  all.buffers = modules::distinct(module.named_buffers());
  all.aliases = modules::aliases_of(module);
  return all;
}

modules::CountedGradient counted_gradient(const ParameterEntry& entry) {
  modules::CountedGradient gradient{.part = entry.part.grad(), .other_ranks = entry.expert_ranks};
  for (const auto& cut : entry.cuts) gradient.cuts.push_back(cut.ranks);
  return gradient;
}

namespace {

// The parameters that fully_shard() distributes in this process: [a module's tensor, or this rank's rows of it].
struct ShardedEntry {
  ParameterEntry entry;
  std::shared_ptr<Tree> tree;
};
using ShardedParameters = std::unordered_map<const c10::TensorImpl*, ShardedEntry>;

ShardedParameters sharded_parameters() {
  ShardedParameters all;
  for (const auto& owner : modules::living_owners()) {
    const auto tree = std::dynamic_pointer_cast<Tree>(owner);
    if (!tree) continue;
    for (const auto& group : tree->groups()) {
      for (const auto& parameter : group->parameters()) {
        const ShardedEntry entry{{parameter.name, parameter.shard, parameter.full_sizes, parameter.cuts},
                                 tree};
        all.insert({parameter.shard.unsafeGetTensorImpl(), entry});
        if (const auto whole = parameter.lock_whole(); whole.defined())
          all.insert({whole.unsafeGetTensorImpl(), entry});
      }
    }
  }
  return all;
}

// Each parameter of the list once.
StateEntries entries_of_list(const std::vector<at::Tensor>& parameters) {
  if (modules::has_distributed_experts()) {
    throw ArgumentError(
        "clip_grad_norm_: this process has experts of a MixtureOfExperts on several ranks, and a list of parameters "
        "does not say which are theirs; pass the module: clip_grad_norm_(net, max_norm)");
  }
  const auto sharded = sharded_parameters();
  StateEntries all{.owner = "the list's", .parameters = {}, .buffers = {}};
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    const auto found = sharded.find(parameter.unsafeGetTensorImpl());
    if (found != sharded.end()) found->second.tree->check();
    auto entry = found == sharded.end() ? entry_of_parameter("", parameter) : found->second.entry;
    if (seen.insert(entry.part.unsafeGetTensorImpl()).second) all.parameters.push_back(std::move(entry));
  }
  return all;
}

std::uint64_t bytes_of(const at::Tensor& part, at::IntArrayRef sizes) {
  return static_cast<std::uint64_t>(c10::multiply_integers(sizes)) * part.element_size();
}

StateEntries entries_named(const StateEntries& entries, const std::vector<std::string>& names) {
  const auto is_in = [&](const auto& entry) { return std::ranges::find(names, entry.name) != names.end(); };
  StateEntries found{.owner = entries.owner, .parameters = {}, .buffers = {}};
  std::ranges::copy_if(entries.parameters, std::back_inserter(found.parameters), is_in);
  std::ranges::copy_if(entries.buffers, std::back_inserter(found.buffers), is_in);
  return found;
}

double clip(const StateEntries& entries, double max_norm, const ClipGradNormOptions& options,
            std::source_location where) {
  std::vector<modules::CountedGradient> gradients;
  for (const auto& entry : entries.parameters) gradients.push_back(counted_gradient(entry));
  return modules::clip_gradients(gradients, max_norm, options, nullptr, where);
}

}  // namespace
}  // namespace fsdp

using fsdp::Entries;

Dict get_model_state_dict(ConstModuleRef module, const StateDictOptions& options,
                          std::source_location where) {
  const comm::CallSite site(where, "state dict");
  optim::refuse_save("get_model_state_dict", module->parameters());
  return fsdp::model_state_dict(fsdp::entries_of(module), options);
}

LoadReport set_model_state_dict(ModuleRef module, const Dict& model_state_dict,
                                const StateDictOptions& options, std::source_location where) {
  const comm::CallSite site(where, "state dict");
  if (const auto sharded = FSDPModule::find(module)) Entries::reshard(*sharded);
  return fsdp::load_model_state_dict(fsdp::entries_of(module), model_state_dict, options);
}

Dict get_optimizer_state_dict(ConstModuleRef module, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options, std::source_location where) {
  const comm::CallSite site(where, "state dict of an optimizer");
  return fsdp::optimizer_state_dict(fsdp::entries_of(module), optimizer, options);
}

void set_optimizer_state_dict(ModuleRef module, torch::optim::Optimizer& optimizer,
                              const Dict& optim_state_dict, const StateDictOptions& options,
                              std::source_location where) {
  const comm::CallSite site(where, "state dict of an optimizer");
  fsdp::load_optimizer_state_dict(fsdp::entries_of(module), optimizer, optim_state_dict, options);
}

Dict get_model_state_dict(const FSDPModule& module, const StateDictOptions& options,
                          std::source_location where) {
  const comm::CallSite site(where, "state dict");
  return fsdp::model_state_dict(Entries::of(module), options);
}

LoadReport set_model_state_dict(const FSDPModule& module, const Dict& model_state_dict,
                                const StateDictOptions& options, std::source_location where) {
  const comm::CallSite site(where, "state dict");
  Entries::reshard(module);
  return fsdp::load_model_state_dict(Entries::of(module), model_state_dict, options);
}

at::Tensor full_tensor(ConstModuleRef module, const std::string& name, std::source_location where) {
  const comm::CallSite site(where, "full_tensor()");
  return fsdp::full_tensor(fsdp::entries_of(module), name);
}

void save_pretrained(const FSDPModule& module, const std::filesystem::path& save_directory,
                     const safetensors::SaveDirectoryOptions& options, std::source_location where) {
  const comm::CallSite site(where, "state dict");
  const auto entries = Entries::of(module);
  fsdp::refuse_experts(entries, "save_pretrained()");
  std::vector<safetensors::TensorSize> sizes;
  for (const auto& entry : entries.parameters)
    sizes.push_back({entry.name, fsdp::bytes_of(entry.part, entry.sizes)});
  for (const auto& [name, buffer] : entries.buffers)
    sizes.push_back({name, fsdp::bytes_of(buffer, buffer.sizes())});
  const safetensors::FolderPlan plan(sizes, options.max_shard_size);
  // After an error rank 0 takes part in the remaining calls, so that no rank waits for it.
  std::string error;
  const auto on_first_rank = [&](const std::function<void()>& write) {
    if (get_rank() != 0 || !error.empty()) return;
    try {
      write();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
  };
  std::optional<safetensors::FolderWrite> write;
  on_first_rank([&] { write.emplace(plan, save_directory, options); });
  for (std::size_t i = 0; i < plan.files().size(); ++i) {
    const auto tensors = fsdp::model_state_dict(fsdp::entries_named(entries, plan.files()[i]),
                                                {.full_state_dict = true, .cpu_offload = true});
    on_first_rank([&] { write->write(i, tensors); });
  }
  on_first_rank([&] { write->finish(); });
  error = default_group().broadcast_object(error, 0);
  if (!error.empty()) throw_error<CheckpointError>("{}", error);
}

void load_pretrained(const FSDPModule& module, const std::filesystem::path& checkpoint_path) {
  const ErrorFile about(checkpoint_path);
  set_model_state_dict(
      module, safetensors::load_torch_state_dict(checkpoint_path, {.mmap = true}));  // this rank's rows only
}

Dict get_optimizer_state_dict(const FSDPModule& module, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options, std::source_location where) {
  const comm::CallSite site(where, "state dict of an optimizer");
  return fsdp::optimizer_state_dict(Entries::of(module), optimizer, options);
}

void set_optimizer_state_dict(const FSDPModule& module, torch::optim::Optimizer& optimizer,
                              const Dict& optim_state_dict, const StateDictOptions& options,
                              std::source_location where) {
  const comm::CallSite site(where, "state dict of an optimizer");
  fsdp::load_optimizer_state_dict(Entries::of(module), optimizer, optim_state_dict, options);
}

double clip_grad_norm_(const FSDPModule& module, double max_norm, const ClipGradNormOptions& options,
                       std::source_location where) {
  const CallerPlace place(where);
  return fsdp::clip(Entries::of(module, /*with_ignored=*/false), max_norm, options, where);
}

double clip_grad_norm_(ModuleRef module, double max_norm, const ClipGradNormOptions& options,
                       std::source_location where) {
  const CallerPlace place(where);
  optim::refuse_step("clip_grad_norm_", module->parameters());
  return fsdp::clip(fsdp::entries_of(module, /*with_ignored=*/false), max_norm, options, where);
}

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       const ClipGradNormOptions& options, std::source_location where) {
  const CallerPlace place(where);
  optim::refuse_step("clip_grad_norm_", parameters);
  return fsdp::clip(fsdp::entries_of_list(parameters), max_norm, options, where);
}

Dict FSDPModule::state_dict(std::source_location where) const {
  return get_model_state_dict(*this, {}, where);
}

void FSDPModule::load_state_dict(const Dict& state_dict, std::source_location where) const {
  set_model_state_dict(*this, state_dict, {}, where);
}

}  // namespace lockstep
