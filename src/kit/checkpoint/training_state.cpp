// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <mutex>

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

#include "base/throw_error.h"
#include "checkpoint/generator_states.h"
#include "checkpoint/share.h"
#include "optim/optimizer_states.h"
#include "runtime/run.h"
#include "state/optimizer_state.h"

namespace lockstep {
namespace checkpointing {
namespace {

constexpr const char* kAllGpus = "cuda";
constexpr const char* kOwnGpu = "own_cuda";

void warn_of_missing(std::size_t saved, std::size_t here) {
  log(LogLevel::warning, fmt::format("the checkpoint has the random numbers of {} GPUs, but this process has "
                                     "{}",
                                     saved, here));
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(state.cpu());
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("this is not the state of a generator: {}", error.what_without_backtrace());
  }
}

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
  const auto& gradients = gradients_for(group, saved.as_dict());
  const auto parameters = module.named_parameters();
  for (const auto& each : parameters) check_gradient(each.key(), each.value(), gradients.find(each.key()));
  for (const auto& each : parameters) set_gradient(each.value(), gradients.at(each.key()));
}

}  // namespace

Value generator_states(at::Generator cpu, GpuGenerators gpus) {
  if (gpus.all.empty()) return state_of(cpu);
  if (gpus.only_own) return Dict{{"cpu", state_of(cpu)}, {kOwnGpu, state_of(gpus.all.at(gpus.own))}};
  List states;
  for (auto& gpu : gpus.all) states.items.emplace_back(state_of(gpu));
  return Dict{{"cpu", state_of(cpu)}, {kAllGpus, std::move(states)}};
}

void set_generator_states(at::Generator cpu, GpuGenerators gpus, const Value& states) {
  // A bare tensor is what Python's torch.get_rng_state() gives.
  if (states.is<at::Tensor>()) return set_state(cpu, states.as_tensor());
  set_state(cpu, states["cpu"].as_tensor());
  if (const auto* own = states.as_dict().find(kOwnGpu)) {
    if (gpus.all.empty()) return warn_of_missing(1, 0);
    return set_state(gpus.all.at(gpus.own), own->as_tensor());
  }
  const auto& saved = states[kAllGpus].as_items();
  if (saved.size() > gpus.all.size()) warn_of_missing(saved.size(), gpus.all.size());
  for (std::size_t i = 0; i < std::min(saved.size(), gpus.all.size()); ++i) {
    if (!gpus.only_own || i == gpus.own) set_state(gpus.all[i], saved[i].as_tensor());
  }
}

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

TrainingState::TrainingState(std::optional<ProcessGroup> process_group)
    : group_(runtime::group_or_default(process_group, "TrainingState")) {}

TrainingState& TrainingState::add_functions(std::string name, std::function<Value()> save,
                                            std::function<void(const Value&)> load) {
  if (std::ranges::find(entries_, name, &Entry::name) != entries_.end())
    throw_error<ArgumentError>("TrainingState: there are two parts named '{}'", name);
  entries_.push_back({std::move(name), std::move(save), std::move(load)});
  return *this;
}

TrainingState& TrainingState::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer) {
  const auto save = [&optimizer, group = group_] {
    if (state::has_rows(optimizer)) return Value(state::complete_state_dict(optimizer));
    auto* distributed = dynamic_cast<optim::DistributedStates*>(&optimizer);
    if (distributed == nullptr) return Value(lockstep::state_dict(optimizer));
    distributed->consolidate();
    checkpointing::on_first(group, [&] { distributed->check_complete(); });
    return Value(optim::states_of_rank(optimizer));
  };
  return add_functions(name, save, [&optimizer](const Value& value) {
    lockstep::load_state_dict(optimizer, value.as_dict());
  });
}

TrainingState& TrainingState::add_generator(const std::string& name) {
  const auto save_all = [group = group_] {
    Dict states;
    const auto all = checkpointing::gather_texts(group, save_bytes(checkpointing::own_states(group)));
    for (std::size_t rank = 0; rank < all.size(); ++rank) states.set(rank, load_bytes(all[rank]));
    return Value(std::move(states));
  };
  const auto load_own = [group = group_](const Value& value) {
    // A bare tensor is what Python's torch.get_rng_state() gives.
    if (value.is<at::Tensor>()) return checkpointing::set_own_states(group, value);
    const auto* own = value.as_dict().find(checkpointing::rank_of(group));
    if (own != nullptr) checkpointing::set_own_states(group, *own);
  };
  return add_functions(name, save_all, load_own);
}

TrainingState& TrainingState::add_gradients(const std::string& name, const torch::nn::Module& module) {
  return add_functions(
      name, [&module, group = group_] { return checkpointing::gradients_of(module, group); },
      [&module, group = group_](const Value& value) { checkpointing::set_gradients(module, group, value); });
}

Dict TrainingState::state_dict() const {
  runtime::require_made_in_run(group_, "TrainingState");
  Dict dict;
  for (const auto& entry : entries_) dict.set(entry.name, entry.save());
  return dict;
}

void TrainingState::load_state_dict(const Dict& state_dict) const {
  runtime::require_made_in_run(group_, "TrainingState");
  for (const auto& entry : entries_) {
    const auto* value = state_dict.find(entry.name);
    if (value == nullptr) throw_error<CheckpointError>("the checkpoint has no '{}'", entry.name);
    try {
      entry.load(*value);
    } catch (const CheckpointError& error) {
      throw_error<CheckpointError>("'{}' of the checkpoint does not fit: {}", entry.name, error.what());
    }
  }
}

}  // namespace lockstep
