// SPDX-License-Identifier: BSD-3-Clause

#include <lockstep/checkpoint/epoch_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>

#include "base/throw_error.h"
#include "serialize/plain_values.h"

namespace lockstep {
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
