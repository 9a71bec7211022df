// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/serialize/value.h>

namespace lockstep {

/// Parameters and buffers by name, in Python's order, as an OrderedDict of tensors that share the module's
/// data. Values are detached; `_metadata` is set as Python does. PyTorch: `Module.state_dict()`. A module
/// wrapped by DistributedDataParallel or DataParallel has its names behind "module.", as in Python.
Dict state_dict(const torch::nn::Module& module);

/// The first rule whose pattern is found in a key decides: as Python's `re.sub(pattern, replacement, key)`.
struct RenameRule {
  std::string pattern;      ///< an ECMAScript regular expression
  std::string replacement;  ///< $1, $2, ... stand for groups
};

/// PyTorch: the arguments of Module.load_state_dict.
struct LoadStateDictOptions {
  /// Missing and unexpected keys are errors. Tensors of another shape always are, but with `partial`.
  bool strict = true;
  /// Take what fits, by name and number of elements (of another shape too), and leave out the rest, with a
  /// reason in the report. Excludes strict, which is then not looked at.
  bool partial = false;
  /// Applied to the keys of the dict before anything else.
  std::vector<RenameRule> rename = {};
  /// Parameters that were loaded need no gradient from now on.
  bool freeze = false;
};

struct SkippedKey {
  std::string key;
  std::string reason;
};

enum class PrefixChange : std::uint8_t { none, added, removed };

/// PyTorch: the named tuple `_IncompatibleKeys`, and more.
struct LoadReport {
  std::vector<std::string> missing_keys;     ///< the module has them, the dict does not
  std::vector<std::string> unexpected_keys;  ///< the other way round
  std::vector<std::string> loaded_keys;
  std::vector<SkippedKey> skipped;           ///< with `partial`: there in both, but not fitting
  PrefixChange prefix = PrefixChange::none;  ///< what was done with "module." in front of the dict's keys
};

/// Copies a state dict into parameters and buffers, converting dtype and device. A dict that was saved from a
/// module wrapped by DistributedDataParallel or DataParallel fits the bare module and the other way round:
/// "module." is put in front of all keys or taken away, which the report says. PyTorch:
/// `Module.load_state_dict()`. Throws CheckpointError with all that does not fit, in Python's words; the
/// module is then unchanged.
LoadReport load_state_dict(torch::nn::Module& module, const Dict& state_dict,
                           const LoadStateDictOptions& options = {});

/// A TORCH_MODULE holder, a shared_ptr of a module, a DistributedDataParallel or a DataParallel.
template <typename Holder>
concept ModulePointer = requires(const Holder& holder) {
  { *holder } -> std::convertible_to<const torch::nn::Module&>;
};

template <ModulePointer Holder>
Dict state_dict(const Holder& module) {
  return state_dict(static_cast<const torch::nn::Module&>(*module));
}

template <ModulePointer Holder>
LoadReport load_state_dict(Holder& module, const Dict& dict, const LoadStateDictOptions& options = {}) {
  return load_state_dict(static_cast<torch::nn::Module&>(*module), dict, options);
}

/// Takes "module." away from the front of every key that has it, as Python's
/// `consume_prefix_in_state_dict_if_present`.
Dict without_prefix(const Dict& state_dict, const std::string& prefix = "module.");

}  // namespace lockstep
