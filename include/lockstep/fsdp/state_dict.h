// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <source_location>
#include <string>
#include <utility>

#include <torch/optim/optimizer.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

/// PyTorch's keyword `options` of the functions below. Giving it does not compile: its fields are written at once.
struct OptionsKeyword {
  OptionsKeyword() = default;
  template <typename Options>
  OptionsKeyword(const Options& /*options*/) {  // NOLINT: implicit by design
    static_assert(sizeof(Options) == 0,
                  "leave `.options =` out: get_model_state_dict(net, {.full_state_dict = true})");
  }
};

/// PyTorch: `torch.distributed.checkpoint.state_dict.StateDictOptions`.
struct StateDictOptions {
  /// Whole tensors instead of this rank's rows; experts on several ranks stay on their ranks.
  bool full_state_dict = false;
  /// Tensors on the CPU. With full_state_dict, only rank 0 has entries.
  bool cpu_offload = false;
  /// For set_model_state_dict(): a parameter or buffer that the dict does not have is an error, and so is an entry that
  /// the module does not have. False: the former keeps its values, the latter is left out.
  bool strict = true;
  /// For set_model_state_dict() and set_optimizer_state_dict(): rank 0 has whole tensors, and other ranks'
  /// dicts are not read. Set by all ranks. They throw ArgumentError for experts on several ranks.
  bool broadcast_from_rank0 = false;
  /// An optimizer's state dict has the entries "state.<parameter>.<name>" and
  /// "param_groups.<parameter>.<option>", so that the ranks of a pipeline, which have other parameters, can
  /// save one checkpoint together.
  bool flatten_optimizer_state_dict = false;
  OptionsKeyword options = {};  ///< does not compile
};

/// The parameters and buffers of a module by name, detached; tied ones under each of their names. A parameter
/// that fully_shard() or parallelize_module() distributes is a ShardedTensor which shares this rank's part,
/// or with full_state_dict whole. So distributed_checkpoint saves it and loads into it, on any mesh, in one
/// process, and both ways with Python:
///
///     auto weights = get_model_state_dict(sharded);
///     distributed_checkpoint::load(weights, folder);
///
/// With full_state_dict it is collective. All functions here are called by all ranks together if one option
/// is set. PyTorch: `torch.distributed.checkpoint.state_dict.get_model_state_dict`.
Dict get_model_state_dict(ConstModuleRef module, const StateDictOptions& options = {},
                          std::source_location where = std::source_location::current());
Dict get_model_state_dict(const FSDPModule& module, const StateDictOptions& options = {},
                          std::source_location where = std::source_location::current());
/// Copies whole tensors, or ShardedTensors with this rank's parts, into the parameters and buffers. Tied ones
/// may have any of their names. Returns the names that the dict lacks and those that the module does not have, in rank
/// 0's dict with broadcast_from_rank0: `auto [missing, unexpected] = set_model_state_dict(net, d, {.strict = false});`.
/// Throws CheckpointError, naming the entry, for a missing or an unexpected one (unless `{.strict = false}`), another
/// shape or other parts. With broadcast_from_rank0 all ranks throw it. PyTorch: `set_model_state_dict`.
LoadReport set_model_state_dict(ModuleRef module, const Dict& model_state_dict,
                                const StateDictOptions& options = {},
                                std::source_location where = std::source_location::current());
LoadReport set_model_state_dict(const FSDPModule& module, const Dict& model_state_dict,
                                const StateDictOptions& options = {},
                                std::source_location where = std::source_location::current());

/// The whole parameter of that name, detached. It is a copy where fully_shard() or parallelize_module() has
/// distributed the parameter, else it shares its data. Collective, of the ranks that have the parameter.
/// Throws ArgumentError for an unknown name. PyTorch: `DTensor.full_tensor()`.
at::Tensor full_tensor(ConstModuleRef module, const std::string& name,
                       std::source_location where = std::source_location::current());

/// Writes the whole parameters and buffers as `safetensors::save_torch_state_dict()` does. They are gathered
/// for one file at a time, which rank 0 writes. Collective. Throws CheckpointError on all ranks, and
/// ArgumentError for experts on several ranks.
/// transformers: `save_pretrained`.
void save_pretrained(const FSDPModule& module, const std::filesystem::path& save_directory,
                     const safetensors::SaveDirectoryOptions& options = {},
                     std::source_location where = std::source_location::current());
/// Loads what save_pretrained() and model hubs write; each rank reads its rows only. `checkpoint_path`: as
/// for `safetensors::load_torch_state_dict()`. Throws CheckpointError as set_model_state_dict() does.
void load_pretrained(const FSDPModule& module, const std::filesystem::path& checkpoint_path);

/// {"state": {name: {...}}, "param_groups": [{..., "params": [names]}]} of an optimizer of the parameters():
/// the FSDPModule's where there is one, else the module's. Tensors of a part's shape are as in
/// get_model_state_dict(). Before the optimizer's first step, its states are created by a step with learning
/// rate and gradients 0, as in PyTorch. PyTorch: `get_optimizer_state_dict`.
Dict get_optimizer_state_dict(ConstModuleRef module, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options = {},
                              std::source_location where = std::source_location::current());
Dict get_optimizer_state_dict(const FSDPModule& module, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options = {},
                              std::source_location where = std::source_location::current());
/// Loads what get_optimizer_state_dict() returns. Throws CheckpointError as set_model_state_dict() and
/// load_state_dict() do. PyTorch: `set_optimizer_state_dict`.
void set_optimizer_state_dict(ModuleRef module, torch::optim::Optimizer& optimizer,
                              const Dict& optim_state_dict, const StateDictOptions& options = {},
                              std::source_location where = std::source_location::current());
void set_optimizer_state_dict(const FSDPModule& module, torch::optim::Optimizer& optimizer,
                              const Dict& optim_state_dict, const StateDictOptions& options = {},
                              std::source_location where = std::source_location::current());

/// The state dicts of a module and of its optimizer: `auto [model, optim] = get_state_dict(net, optimizer);`. As
/// get_model_state_dict() and get_optimizer_state_dict(). PyTorch: `get_state_dict`.
inline std::pair<Dict, Dict> get_state_dict(ConstModuleRef model, torch::optim::Optimizer& optimizer,
                                            const StateDictOptions& options = {},
                                            std::source_location where = std::source_location::current()) {
  auto weights = get_model_state_dict(model, options, where);
  return {std::move(weights), get_optimizer_state_dict(model, optimizer, options, where)};
}
inline std::pair<Dict, Dict> get_state_dict(const FSDPModule& model, torch::optim::Optimizer& optimizer,
                                            const StateDictOptions& options = {},
                                            std::source_location where = std::source_location::current()) {
  auto weights = get_model_state_dict(model, options, where);
  return {std::move(weights), get_optimizer_state_dict(model, optimizer, options, where)};
}
/// Loads what get_state_dict() returns, as set_model_state_dict() and set_optimizer_state_dict(). Returns what the first
/// one does. PyTorch: `set_state_dict`.
inline LoadReport set_state_dict(ModuleRef model, torch::optim::Optimizer& optimizer,
                                 const Dict& model_state_dict, const Dict& optim_state_dict,
                                 const StateDictOptions& options = {},
                                 std::source_location where = std::source_location::current()) {
  auto report = set_model_state_dict(model, model_state_dict, options, where);
  set_optimizer_state_dict(model, optimizer, optim_state_dict, options, where);
  return report;
}
inline LoadReport set_state_dict(const FSDPModule& model, torch::optim::Optimizer& optimizer,
                                 const Dict& model_state_dict, const Dict& optim_state_dict,
                                 const StateDictOptions& options = {},
                                 std::source_location where = std::source_location::current()) {
  auto report = set_model_state_dict(model, model_state_dict, options, where);
  set_optimizer_state_dict(model, optimizer, optim_state_dict, options, where);
  return report;
}

/// The last arguments of set_state_dict(), by name: `set_state_dict(net, optimizer, {.model_state_dict = model,
/// .optim_state_dict = optim})`.
struct SetStateDictArguments {
  Dict model_state_dict;          ///< of get_model_state_dict()
  Dict optim_state_dict;          ///< of get_optimizer_state_dict()
  StateDictOptions options = {};  ///< of both
};
inline LoadReport set_state_dict(ModuleRef model, torch::optim::Optimizer& optimizer,
                                 const SetStateDictArguments& arguments,
                                 std::source_location where = std::source_location::current()) {
  return set_state_dict(model, optimizer, arguments.model_state_dict, arguments.optim_state_dict,
                        arguments.options, where);
}
inline LoadReport set_state_dict(const FSDPModule& model, torch::optim::Optimizer& optimizer,
                                 const SetStateDictArguments& arguments,
                                 std::source_location where = std::source_location::current()) {
  return set_state_dict(model, optimizer, arguments.model_state_dict, arguments.optim_state_dict,
                        arguments.options, where);
}

}  // namespace lockstep
