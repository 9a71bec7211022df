// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/runtime/random.h>
#include <lockstep/serialize/torch_file.h>

#include "checkpoint/training_parts.h"
#include "serialize/errors.h"

namespace lockstep {
namespace {

// One of several ranks has one GPU; a process that is alone has all that it may use.
checkpointing::GpuGenerators gpus_of_rank(const std::optional<ProcessGroup>& group) {
  return checkpointing::gpu_generators(group && group->size() > 1);
}

Value own_states(const std::optional<ProcessGroup>& group) {
  return checkpointing::generator_states(default_generator(), gpus_of_rank(group));
}

void set_own_states(const std::optional<ProcessGroup>& group, const Value& states) {
  checkpointing::set_generator_states(default_generator(), gpus_of_rank(group), states);
}

std::int64_t rank_in(const std::optional<ProcessGroup>& group) { return group ? group->rank() : 0; }

}  // namespace

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
    : group_(checkpointing::group_or_default(process_group)) {}

TrainingState& TrainingState::add_functions(std::string name, std::function<Value()> save,
                                            std::function<void(const Value&)> load) {
  if (std::ranges::find(entries_, name, &Entry::name) != entries_.end())
    throw_error<ArgumentError>("TrainingState: there are two parts named '{}'", name);
  entries_.push_back({std::move(name), std::move(save), std::move(load)});
  return *this;
}

TrainingState& TrainingState::add_generator(const std::string& name) {
  const auto save_all = [group = group_] {
    Dict states;
    if (!group || group->size() == 1) {
      states.set(0, own_states(group));
      return Value(std::move(states));
    }
    const auto all = group->all_gather_object(save_bytes(own_states(group)));
    for (std::size_t rank = 0; rank < all.size(); ++rank) states.set(rank, load_bytes(all[rank]));
    return Value(std::move(states));
  };
  const auto load_own = [group = group_](const Value& value) {
    // A bare tensor is what Python's torch.get_rng_state() gives.
    if (value.is<at::Tensor>()) return set_own_states(group, value);
    const auto* own = value.as_dict().find(rank_in(group));
    if (own != nullptr) set_own_states(group, *own);
  };
  return add_functions(name, save_all, load_own);
}

TrainingState& TrainingState::add_gradients(const std::string& name, const torch::nn::Module& module) {
  return add_functions(
      name, [&module, group = group_] { return checkpointing::gradients_of(module, group); },
      [&module, group = group_](const Value& value) { checkpointing::set_gradients(module, group, value); });
}

Dict TrainingState::state_dict() const {
  Dict dict;
  for (const auto& entry : entries_) dict.set(entry.name, entry.save());
  return dict;
}

void TrainingState::load_state_dict(const Dict& state_dict) const {
  for (const auto& entry : entries_) {
    const auto* value = state_dict.find(entry.name);
    if (value == nullptr) throw_error("the checkpoint has no '{}'", entry.name);
    try {
      entry.load(*value);
    } catch (const CheckpointError& error) {
      throw_error("'{}' of the checkpoint does not fit: {}", entry.name, error.what());
    }
  }
}

}  // namespace lockstep
