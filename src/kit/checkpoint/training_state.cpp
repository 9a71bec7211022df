// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/device/device.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/serialize/torch_file.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "checkpoint/generator_states.h"
#include "checkpoint/own_state.h"
#include "checkpoint/share.h"
#include "checkpoint/training_state_access.h"
#include "comm/call_site.h"
#include "optim/optimizer_states.h"
#include "runtime/run.h"
#include "serialize/plain_values.h"
#include "state/optimizer_state.h"

namespace lockstep {
namespace checkpointing {
namespace {

constexpr const char* kOfAll = "all";
constexpr const char* kRanks = "ranks";

Dict own_gradients(const torch::nn::Module& module) {
  Dict gradients;
  for (const auto& parameter : module.named_parameters()) {
    const auto& gradient = parameter.value().grad();
    // Only its own part of a shared bucket, and on the CPU, because a device index would make equal gradients
    // differ.
    gradients.set(parameter.key(), gradient.defined() ? Value(gradient.detach().cpu().clone()) : Value());
  }
  return gradients;
}

void check_gradient(const std::string& name, const at::Tensor& parameter, const Value* saved) {
  if (saved == nullptr) throw_error<CheckpointError>("there is no gradient for '{}'", name);
  if (saved->is<None>() || saved->as_tensor().sizes() == parameter.sizes()) return;
  throw_error<CheckpointError>("the gradient of '{}' is of shape [{}] instead of [{}]", name,
                               fmt::join(saved->as_tensor().sizes(), ", "),
                               fmt::join(parameter.sizes(), ", "));
}

void set_gradient(const at::Tensor& parameter, const Value& saved) {
  auto& gradient = parameter.mutable_grad();
  if (saved.is<None>()) {
    gradient.reset();
  } else if (gradient.defined()) {
    // It may lie in a bucket.
    const at::NoGradGuard no_grad;
    gradient.copy_(saved.as_tensor());
  } else {
    gradient = at::empty_like(parameter.detach()).copy_(saved.as_tensor());
  }
}

void set_gradients_to(const torch::nn::Module& module, const Dict& gradients) {
  const auto parameters = module.named_parameters();
  for (const auto& each : parameters) check_gradient(each.key(), each.value(), gradients.find(each.key()));
  for (const auto& each : parameters) set_gradient(each.value(), gradients.at(each.key()));
}

const Dict& gradients_for(const Group& group, const Dict& saved) {
  if (const auto* of_all = saved.find(kOfAll)) return of_all->as_dict();
  const auto ranks = group ? group->size() : 1;
  if (saved.at(kRanks).as_int() != ranks) {
    throw_error<CheckpointError>(
        "gradients that {} ranks accumulated cannot be loaded by {}: use as many ranks, or a checkpoint "
        "saved after an optimizer step",
        saved.at(kRanks).as_int(), ranks);
  }
  return saved.at(rank_of(group)).as_dict();
}

// One of several ranks has one GPU; a process that is alone has all that it may use.
GpuGenerators gpus_of_rank(const Group& group) {
  GpuGenerators gpus{.only_own = group && group->size() > 1};
  for (int i = 0; i < device_count(at::kCUDA); ++i) {
    gpus.all.push_back(at::globalContext().defaultGenerator({at::kCUDA, static_cast<c10::DeviceIndex>(i)}));
  }
  if (!gpus.all.empty()) {
    gpus.own = static_cast<std::size_t>(c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index());
  }
  return gpus;
}

Value own_states(const Group& group) { return generator_states(default_generator(), gpus_of_rank(group)); }

void set_own_states(const Group& group, const Value& states) {
  set_generator_states(default_generator(), gpus_of_rank(group), states);
}

// Collective with DistributedStates.
Value state_of_all(torch::optim::Optimizer& optimizer, const Group& group) {
  if (state::has_rows(optimizer)) return state::complete_state_dict(optimizer);
  auto* distributed = dynamic_cast<optim::DistributedStates*>(&optimizer);
  if (distributed == nullptr) return lockstep::state_dict(optimizer);
  distributed->consolidate();
  on_first(group, [&] { distributed->check_complete(); });
  return optim::states_of_rank(optimizer);
}

// By rank. Collective.
Value states_of_all(const Group& group) {
  Dict states;
  const auto all = gather_texts(group, save_bytes(own_states(group)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) states.set(rank, load_bytes(all[rank]));
  return states;
}

void set_from_all(const Group& group, const Value& states) {
  // A bare tensor is what Python's torch.get_rng_state() gives.
  if (states.is<at::Tensor>()) return set_own_states(group, states);
  if (const auto* own = states.as_dict().find(rank_of(group))) set_own_states(group, *own);
}

// The gradients of a module's parameters by name, or None. Collective. {"all": gradients} if they are equal
// on all ranks; otherwise {rank: gradients} with every rank's on rank 0, and only its own elsewhere.
Value gradients_of(const torch::nn::Module& module, const Group& group) {
  auto own = own_gradients(module);
  if (!group || group->size() == 1) return Dict{{kOfAll, std::move(own)}};
  const auto bytes = save_bytes(own);
  const auto sums = group->all_gather_object(digest_of(bytes));
  if (std::ranges::count(sums, sums[0]) == std::ssize(sums)) return Dict{{kOfAll, std::move(own)}};
  const auto all = group->gather_object(bytes, 0);
  Dict states{{kRanks, group->size()}, {group->rank(), std::move(own)}};
  for (std::size_t rank = 1; rank < all.size(); ++rank) states.set(rank, load_bytes(all[rank]));
  return states;
}

// Restores every parameter's gradient in place. Throws CheckpointError: names or shapes do not fit, or the
// gradients belong to another number of ranks.
void set_gradients(const torch::nn::Module& module, const Group& group, const Value& saved) {
  set_gradients_to(module, gradients_for(group, saved.as_dict()));
}

}  // namespace
}  // namespace checkpointing

Dict position_dict(const data::LoaderPosition& position) {
  Dict dict{{"epoch", position.epoch}, {"batches", position.batches}, {"samples", position.samples}};
  if (position.pass_generator.defined()) dict.set("pass_generator", position.pass_generator);
  if (position.own_generator.defined()) dict.set("own_generator", position.own_generator);
  if (position.passes > 0) dict.set("passes", position.passes);
  if (position.base_seed) dict.set("base_seed", *position.base_seed);
  return dict;
}

data::LoaderPosition position_of(const Dict& dict) {
  data::LoaderPosition position{.epoch = dict.at("epoch").as_int(),
                                .batches = dict.at("batches").as_int(),
                                .samples = dict.at("samples").as_int(),
                                .pass_generator = {},
                                .own_generator = {}};
  if (const auto* passes = dict.find("passes")) position.passes = passes->as_int();
  if (const auto* seed = dict.find("base_seed")) position.base_seed = seed->as_int();
  if (position.batches < 0 || position.samples < 0 || position.passes < 0)
    throw CheckpointError("a loader's position cannot be negative");
  if (const auto* state = dict.find("pass_generator")) position.pass_generator = state->as_tensor().cpu();
  if (const auto* state = dict.find("own_generator")) position.own_generator = state->as_tensor().cpu();
  return position;
}

TrainingState::TrainingState(const std::optional<ProcessGroup>& process_group)
    : group_(runtime::group_or_default(process_group, "TrainingState")) {}

TrainingState& TrainingState::add_entry(Entry entry) {
  if (std::ranges::find(entries_, entry.name, &Entry::name) != entries_.end())
    throw_error<ArgumentError>("TrainingState: there are two parts named '{}'", entry.name);
  entries_.push_back(std::move(entry));
  return *this;
}

TrainingState& TrainingState::add_functions(std::string name, std::function<Value()> save,
                                            std::function<void(const Value&)> load) {
  const Functions functions{.save = std::move(save), .load = std::move(load)};
  return add_entry({.name = std::move(name), .all = functions, .own = functions});
}

TrainingState& TrainingState::add_part(std::string name, Functions all, Functions own) {
  static constexpr std::string_view kContents = "state of a training run";
  return add_entry({.name = std::move(name),
                    .all = {.save =
                                [save = std::move(all.save)] {
                                  const comm::CallSite site(kContents);
                                  return save();
                                },
                            .load =
                                [load = std::move(all.load)](const Value& value) {
                                  const comm::CallSite site(kContents);
                                  load(value);
                                }},
                    .own = std::move(own)});
}

TrainingState& TrainingState::add_part(std::string name, Functions functions) {
  auto own = functions;
  return add_part(std::move(name), std::move(functions), std::move(own));
}

TrainingState& TrainingState::add_position(std::string name, Functions functions,
                                           std::function<void()> require_can_shrink) {
  add_part(std::move(name), std::move(functions));
  entries_.back().is_position = true;
  entries_.back().require_can_shrink = std::move(require_can_shrink);
  return *this;
}

void TrainingState::refuse_to_share_again() {
  throw ArgumentError(
      "a loader of the program cannot say whether fewer ranks can share out the rest of an epoch; give its class "
      "`void require_can_shrink() const`, which throws if they cannot");
}

TrainingState::Functions TrainingState::without_own_state(std::string name) {
  return {.save = [name = std::move(name)]() -> Value {
            throw_error<ArgumentError>(
                "the state of '{}' is that of all ranks together; give its class own_state_dict() and "
                "load_own_state_dict() for the state of one rank, which make no calls to the others",
                name);
          },
          .load = [](const Value& /*value*/) {}};
}

TrainingState& TrainingState::add_module(const std::string& name,
                                         std::function<torch::nn::Module&()> module) {
  Functions all{
      .save = [module] { return Value(lockstep::state_dict(module())); },
      .load = [module](const Value& value) { lockstep::load_state_dict(module(), value.as_dict()); }};
  return add_module_part(name, std::move(all), std::move(module));
}

TrainingState& TrainingState::add_module_part(const std::string& name, Functions all,
                                              std::function<torch::nn::Module&()> module) {
  const Functions own{
      .save = [name, module] { return checkpointing::own_state(name, module()); },
      .load = [module](const Value& value) { checkpointing::restore_own_state(module(), value.as_dict()); }};
  add_part(name, std::move(all), own);
  entries_.back().require_can_shrink = [module] { checkpointing::require_can_shrink(module()); };
  modules_.push_back(std::move(module));
  return *this;
}

TrainingState& TrainingState::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer) {
  Functions all, own;
  all.save = [&optimizer, group = group_] { return checkpointing::state_of_all(optimizer, group); };
  all.load = [&optimizer](const Value& value) { lockstep::load_state_dict(optimizer, value.as_dict()); };
  own.save = [name, &optimizer] { return checkpointing::own_state(name, optimizer); };
  own.load = [&optimizer](const Value& value) { optim::restore_states(optimizer, value.as_dict()); };
  add_part(name, std::move(all), std::move(own));
  entries_.back().require_can_shrink = [&optimizer] { checkpointing::require_can_shrink(optimizer); };
  optimizers_.push_back(&optimizer);
  return *this;
}

TrainingState& TrainingState::add_generator(const std::string& name) {
  using namespace checkpointing;
  Functions all, own;
  all.save = [group = group_] { return states_of_all(group); };
  all.load = [group = group_](const Value& value) { set_from_all(group, value); };
  own.save = [group = group_] { return own_states(group); };
  own.load = [group = group_](const Value& value) { set_own_states(group, value); };
  return add_part(name, std::move(all), std::move(own));
}

TrainingState& TrainingState::add_gradients(const std::string& name, ModuleRef module) {
  add_part(
      name,
      {.save = [module, group = group_] { return checkpointing::gradients_of(module, group); },
       .load = [module,
                group = group_](const Value& value) { checkpointing::set_gradients(module, group, value); }},
      {.save =
           [name, module] {
             checkpointing::require_own_gradients(name, module);
             return Value(checkpointing::own_gradients(module));
           },
       .load = [module](const Value& value) { checkpointing::set_gradients_to(module, value.as_dict()); }});
  entries_.back().is_gradients = true;
  return *this;
}

Dict TrainingState::state_dict(std::source_location where) const {
  const CallerPlace place(where);
  runtime::require_made_in_run(group_, "TrainingState");
  Dict dict;
  for (const auto& entry : entries_) dict.set(entry.name, entry.all.save());
  return dict;
}

void TrainingState::load_state_dict(const Dict& state_dict, std::source_location where) const {
  const CallerPlace place(where);
  runtime::require_made_in_run(group_, "TrainingState");
  for (const auto& entry : entries_) {
    const auto* value = state_dict.find(entry.name);
    if (value == nullptr) throw_error<CheckpointError>("the checkpoint has no '{}'", entry.name);
    try {
      entry.all.load(*value);
    } catch (const CheckpointError& error) {
      throw_error<CheckpointError>("'{}' of the checkpoint does not fit: {}", entry.name, error.what());
    }
  }
}

void TrainingState::commit(std::source_location where) const {
  const CallerPlace place(where);
  if (committer_ != nullptr) committer_->commit(*this, where);
}

namespace {

// Converts an entry. Errors begin with its name.
template <typename Convert>
auto entry_of(const Dict& checkpoint, const char* name, Convert convert) {
  const auto* value = checkpoint.find(name);
  if (value == nullptr) throw_error<CheckpointError>("the checkpoint has no '{}'", name);
  try {
    return convert(*value);
  } catch (const CheckpointError& error) {
    throw_error<CheckpointError>("'{}' of the checkpoint does not fit: {}", name, error.what());
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("'{}' of the checkpoint cannot be loaded: {}", name,
                                 error.what_without_backtrace());
  }
}

std::int64_t whole_number(const Value& value) {
  const auto* tensor = value.get_if<at::Tensor>();
  if (tensor == nullptr || c10::isFloatingType(tensor->scalar_type())) return value.as_int();
  return static_cast<std::int64_t>(serialize::number_of(value));
}

const char* name_of_best(const Dict& checkpoint) {
  return !checkpoint.contains("best_acc") && checkpoint.contains("best_acc1") ? "best_acc1" : "best_acc";
}

// In host memory.
Dict copied(const Dict& tensors) {
  Dict copies(tensors.kind());
  copies.set_attributes(tensors.attributes());
  for (const auto& [name, tensor] : tensors)
    copies.set(name,
               tensor.as_tensor().to(at::TensorOptions(at::kCPU), /*non_blocking=*/false, /*copy=*/true));
  return copies;
}

}  // namespace

Dict make_epoch_checkpoint(const EpochCheckpoint& progress, ConstModuleRef module,
                           const torch::optim::Optimizer& optimizer) {
  return {{"epoch", progress.epoch},
          {"arch", progress.arch},
          {"state_dict", state_dict(module)},
          {"best_acc", progress.best_acc},
          {"optimizer", state_dict(optimizer)}};
}

EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, ModuleRef module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch) {
  const auto dict = [](const Value& value) { return &value.as_dict(); };
  EpochCheckpoint progress{
      .epoch = entry_of(checkpoint, "epoch", whole_number),
      .arch = entry_of(checkpoint, "arch", [](const Value& value) { return value.as_string(); }),
      .best_acc = entry_of(checkpoint, name_of_best(checkpoint), serialize::number_of)};
  if (!arch.empty() && progress.arch != arch)
    throw_error<CheckpointError>("the checkpoint is of arch '{}', expected '{}'", progress.arch, arch);
  const auto* weights = entry_of(checkpoint, "state_dict", dict);
  const auto* optimizer_dict = entry_of(checkpoint, "optimizer", dict);
  // Loading an optimizer replaces its tensors, so this dict keeps the old ones. A module's are changed in
  // place.
  const auto optimizer_before = state_dict(optimizer);
  const auto module_before = copied(state_dict(module));
  try {
    entry_of(checkpoint, "optimizer", [&](const Value&) { load_state_dict(optimizer, *optimizer_dict); });
    entry_of(checkpoint, "state_dict", [&](const Value&) { load_state_dict(module, *weights); });
  } catch (...) {
    try {
      load_state_dict(module, module_before);
    } catch (const c10::Error&) {
      // The tensor that could not be written fails again; those before it are restored.
    }
    load_state_dict(optimizer, optimizer_before);
    throw;
  }
  return progress;
}

}  // namespace lockstep
