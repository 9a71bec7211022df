// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "base/throw_error.h"
#include "fsdp/sharded_state_dict.h"

namespace lockstep {
namespace {

fsdp::StateEntries entries_of(const torch::nn::Module& module) {
  fsdp::StateEntries all{.owner = "the module's", .parameters = {}, .buffers = {}};
  for (const auto& [name, tensor] : nn::distinct(module.named_parameters())) {
    if (nn::memory_guard_of(tensor) != nullptr)
      throw_error<ArgumentError>("{} is distributed by fully_shard(); use the FSDPModule that it returns",
                                 name);
    all.parameters.push_back(fsdp::entry_of_parameter(name, tensor));
  }
  all.buffers = nn::distinct(module.named_buffers());
  return all;
}

}  // namespace

Dict get_model_state_dict(const torch::nn::Module& module, const StateDictOptions& options) {
  return fsdp::model_state_dict(entries_of(module), options);
}

void set_model_state_dict(torch::nn::Module& module, const Dict& model_state_dict,
                          const StateDictOptions& options) {
  fsdp::load_model_state_dict(entries_of(module), model_state_dict, options);
}

Dict get_optimizer_state_dict(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options) {
  return fsdp::optimizer_state_dict(entries_of(module), optimizer, options);
}

void set_optimizer_state_dict(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                              const Dict& optim_state_dict, const StateDictOptions& options) {
  fsdp::load_optimizer_state_dict(entries_of(module), optimizer, optim_state_dict, options);
}

double clip_grad_norm_(const torch::nn::Module& module, double max_norm, const ClipGradNormOptions& options,
                       std::source_location where) {
  return fsdp::clip_grad_norm(entries_of(module), max_norm, options, where);
}

}  // namespace lockstep
