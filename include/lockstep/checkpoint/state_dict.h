// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <lockstep/device/module_ref.h>
#include <lockstep/serialize/value.h>

namespace lockstep::optim {

/// A base of optimizers whose states are distributed over ranks, such as ZeroRedundancyOptimizer. By it
/// state_dict(), TrainingState and memory_report() know what this rank has.
class DistributedStates {
 public:
  virtual ~DistributedStates() = default;

  /// Throws ArgumentError, which says what to do, unless this rank has the states of all parameters.
  virtual void check_complete() const = 0;
  /// Gives rank 0 of the optimizer's group the states of all ranks. All ranks call it together.
  virtual void consolidate() = 0;

  /// How ranks share the memory of a parameter.
  struct Sharing {
    int ranks = 1;         ///< that share the parameter's memory
    bool is_owner = true;  ///< whether this rank's share counts for all of them
  };
  /// nullopt for a parameter that only this rank has.
  virtual std::optional<Sharing> sharing_of(const at::Tensor& parameter) const = 0;
};

}  // namespace lockstep::optim

namespace lockstep {

/// A base of modules whose `_version` in Python, which `_metadata` holds, is not 1. LibTorch's modules need
/// none. PyTorch: `Module._version`.
class VersionedModule {
 public:
  virtual ~VersionedModule() = default;
  /// The `_version` of the module's class.
  virtual std::int64_t version() const = 0;
};

/// The parameters and buffers of a module by name, in Python's order, as an OrderedDict. Tensors are detached
/// and share the module's data. `_metadata` is set as in Python. The names of a module inside
/// DistributedDataParallel or DataParallel begin with "module.", as in Python. PyTorch:
/// `Module.state_dict()`.
Dict state_dict(ConstModuleRef module);

/// Renames keys like Python's `re.sub(pattern, replacement, key)`. The first rule whose pattern matches
/// applies.
struct RenameRule {
  std::string pattern;      ///< an ECMAScript regular expression
  std::string replacement;  ///< may refer to groups as $1, $2, ...
};

/// Options of load_state_dict(). PyTorch: the arguments of Module.load_state_dict.
struct LoadStateDictOptions {
  /// Missing and unexpected keys are errors. Shape mismatches always are, except with `partial`.
  bool strict = true;
  /// Loads tensors that match by name and shape and skips the others, with a reason in the report. `strict`
  /// is then ignored.
  bool partial = false;
  /// Removed from the keys of the dict that begin with it, e.g. "backbone.".
  std::string remove_prefix = {};
  /// Added to all keys of the dict after that, e.g. "transformer.".
  std::string add_prefix = {};
  /// Applied to the keys of the dict after that.
  std::vector<RenameRule> rename = {};
  /// Sets requires_grad to false on every loaded parameter.
  bool freeze = false;
};

/// A key of a state dict that was not loaded.
struct SkippedKey {
  std::string key;     ///< name in the state dict
  std::string reason;  ///< why it was not loaded
};

/// Whether loading added or removed a prefix "module." of the names.
enum class PrefixChange : std::uint8_t {
  none,     ///< nothing
  added,    ///< it was added to names of the state dict
  removed,  ///< it was removed from names of the state dict
};

/// The result of load_state_dict(). PyTorch: the named tuple `_IncompatibleKeys`.
struct LoadReport {
  std::vector<std::string> missing_keys;     ///< in the module only
  std::vector<std::string> unexpected_keys;  ///< in the dict only
  std::vector<std::string> loaded_keys;      ///< names in the module
  std::vector<SkippedKey> skipped;           ///< with `partial`: in both, but incompatible
  PrefixChange prefix = PrefixChange::none;  ///< what happened to the prefix "module."
};

/// The missing and the unexpected keys, as the parts of Python's tuple:
/// `auto [missing, unexpected] = load_state_dict(net, weights, false);`.
template <std::size_t index>
  requires(index < 2)
const std::vector<std::string>& get(const LoadReport& report) {
  return index == 0 ? report.missing_keys : report.unexpected_keys;
}

/// Lists what was loaded, a change of the prefix, and what did not fit, a line each.
std::ostream& operator<<(std::ostream& stream, const LoadReport& report);

/// Copies a state dict into parameters and buffers, converting dtype and device. The prefix "module." of
/// modules inside DistributedDataParallel or DataParallel is added or removed as needed, which the report
/// states. Throws CheckpointError that lists every mismatch in Python's words; the module is then unchanged.
/// A tensor of the module on device meta is a mismatch. PyTorch: `Module.load_state_dict()`.
LoadReport load_state_dict(ModuleRef module, const Dict& state_dict, const LoadStateDictOptions& options = {},
                           std::source_location where = std::source_location::current());

/// With `strict` at PyTorch's position.
LoadReport load_state_dict(ModuleRef module, const Dict& state_dict, std::same_as<bool> auto strict,
                           std::source_location where = std::source_location::current()) {
  return load_state_dict(std::move(module), state_dict, LoadStateDictOptions{.strict = strict}, where);
}

/// Loads the state dict in a file of torch.save() or save(), in a `.safetensors` file, or in several with an
/// index (`file` is the folder or `model.safetensors.index.json`), as load_state_dict() does. The file's
/// value is the state dict or a dict with one entry that is a state dict, such as {"epoch": 3, "model":
/// {...}}. A tensor that the module has under several names, such as tied weights, may be in the file under
/// any of them. Throws CheckpointError that names the file. Print the result to see what did not fit:
///
///     std::cout << lockstep::load_pretrained(net, "resnet34.pth", {.partial = true});
LoadReport load_pretrained(ModuleRef module, const std::filesystem::path& file,
                           const LoadStateDictOptions& options = {},
                           std::source_location where = std::source_location::current());

/// Does not compile: Python pickles the class of a module or an optimizer, which C++ cannot. Save its state
/// dict.
template <typename Object>
  requires(std::derived_from<Object, torch::nn::Module> ||
           std::derived_from<Object, torch::optim::Optimizer> || ModulePointer<Object>)
void save(const Object& /*object*/, const std::filesystem::path& /*file*/) {
  static_assert(sizeof(Object) == 0, "save the state dict instead: save(state_dict(object), file)");
}

/// Removes `prefix` from every key that has it, in `_metadata` too. PyTorch:
/// `consume_prefix_in_state_dict_if_present`.
Dict without_prefix(const Dict& state_dict, const std::string& prefix = "module.");

/// The state dict of an optimizer, with every key that Python's optimizer of the same name reads:
/// {"state": {0: {...}, ...}, "param_groups": [{"lr": ..., "params": [0, ...]}, ...]}. Tensors share the
/// optimizer's data. Supports SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS, FusedSGD, FusedAdam, FusedAdamW and
/// the optimizers of optim/optimizers.h; throws ArgumentError for others. PyTorch: `Optimizer.state_dict()`.
Dict state_dict(const torch::optim::Optimizer& optimizer);

/// Loads state and hyperparameters from a state dict of C++ or Python. Tensors are copied to the device and
/// dtype of their parameter. Entries that do not affect the result (foreach, fused, capturable) are ignored,
/// and so are those of schedulers (initial_lr) without an optim::LRScheduler. Throws CheckpointError, with
/// the optimizer unchanged, for different numbers of groups or parameters, shape mismatches, the state of
/// another kind of optimizer, and maximize=True for an optimizer of LibTorch. PyTorch:
/// `Optimizer.load_state_dict()`.
void load_state_dict(torch::optim::Optimizer& optimizer, const Dict& state_dict,
                     std::source_location where = std::source_location::current());

/// {"last_epoch", "_step_count", "_last_lr"} of a LibTorch scheduler. The learning rates are in the
/// optimizer's state dict. PyTorch: `LRScheduler.state_dict()`.
Dict state_dict(const torch::optim::LRScheduler& scheduler);

/// Loads "last_epoch", the number of calls of step(), from a state dict of C++ or Python. LibTorch's own
/// StepLR lowers the rate one call later than Python's, with or without checkpoints; optim::StepLR does not.
/// Throws CheckpointError.
void load_state_dict(torch::optim::LRScheduler& scheduler, const Dict& state_dict,
                     std::source_location where = std::source_location::current());

/// A class with a member state_dict() that is no module and no optimizer or scheduler of LibTorch, such as a scheduler of
/// lockstep::optim, amp::GradScaler, a metric and what fully_shard() returns.
template <typename Part>
concept HasStateDict =
    !std::convertible_to<const Part&, ConstModuleRef> && !std::derived_from<Part, torch::optim::Optimizer> &&
    !std::derived_from<Part, torch::optim::LRScheduler> && requires(const Part& part) {
      { part.state_dict() } -> std::convertible_to<Dict>;
    };

/// Its member: `state_dict(scheduler)`.
template <HasStateDict Part>
Dict state_dict(const Part& part) {
  return part.state_dict();
}

/// Its member: `load_state_dict(scheduler, saved["scheduler"])`.
template <HasStateDict Part>
void load_state_dict(Part& part, const Dict& state_dict,
                     std::source_location where = std::source_location::current()) {
  if constexpr (requires { part.load_state_dict(state_dict, where); }) {
    part.load_state_dict(state_dict, where);
  } else {
    part.load_state_dict(state_dict);
  }
}

}  // namespace lockstep

/// LoadReport has the two parts of Python's tuple.
template <>
struct std::tuple_size<lockstep::LoadReport> : std::integral_constant<std::size_t, 2> {};
template <std::size_t index>
struct std::tuple_element<index, lockstep::LoadReport> {
  using type = const std::vector<std::string>;
};
