// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/epoch_checkpoint.h>
#include <lockstep/checkpoint/optimizer_state.h>

#include "checkpoint/learning_rates.h"

namespace lockstep {
namespace {

// What `convert` makes of an entry, whose name stands in front of its errors.
template <typename Convert>
auto entry_of(const Dict& checkpoint, const char* name, Convert convert) {
  const auto* value = checkpoint.find(name);
  if (value == nullptr) throw CheckpointError(fmt::format("the checkpoint has no '{}'", name));
  try {
    return convert(*value);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("'{}' of the checkpoint does not fit: {}", name, error.what()));
  }
}

std::int64_t whole_number(const Value& value) {
  const auto* tensor = value.get_if<at::Tensor>();
  if (tensor == nullptr || c10::isFloatingType(tensor->scalar_type())) return value.as_int();
  return static_cast<std::int64_t>(checkpointing::number_of(value));
}

const char* name_of_best(const Dict& checkpoint) {
  return !checkpoint.contains("best_acc") && checkpoint.contains("best_acc1") ? "best_acc1" : "best_acc";
}

}  // namespace

Dict make_epoch_checkpoint(const EpochCheckpoint& progress, const torch::nn::Module& module,
                           const torch::optim::Optimizer& optimizer) {
  return {{"epoch", progress.epoch},
          {"arch", progress.arch},
          {"state_dict", state_dict(module)},
          {"best_acc", progress.best_acc},
          {"optimizer", state_dict(optimizer)}};
}

EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, torch::nn::Module& module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch) {
  const auto dict = [](const Value& value) { return &value.as_dict(); };
  EpochCheckpoint progress{
      .epoch = entry_of(checkpoint, "epoch", whole_number),
      .arch = entry_of(checkpoint, "arch", [](const Value& value) { return value.as_string(); }),
      .best_acc = entry_of(checkpoint, name_of_best(checkpoint), checkpointing::number_of)};
  if (!arch.empty() && progress.arch != arch) {
    throw CheckpointError(fmt::format("the checkpoint is of arch '{}', expected '{}'", progress.arch, arch));
  }
  const auto* weights = entry_of(checkpoint, "state_dict", dict);
  const auto* optimizer_dict = entry_of(checkpoint, "optimizer", dict);
  // Loading gives an optimizer new tensors, so that those in here stay what they were.
  const auto before = state_dict(optimizer);
  const auto load_optimizer = [&](const Value&) { load_state_dict(optimizer, *optimizer_dict); };
  const auto load_module = [&](const Value&) { load_state_dict(module, *weights); };
  entry_of(checkpoint, "optimizer", load_optimizer);
  try {
    entry_of(checkpoint, "state_dict", load_module);
  } catch (...) {
    load_state_dict(optimizer, before);
    throw;
  }
  return progress;
}

}  // namespace lockstep
