// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

class FSDPModule;

/// A type that keeps its state in a dict: a loader, a meter, a user-defined struct. PyTorch:
/// `torch.distributed.checkpoint.stateful.Stateful`.
template <typename T>
concept Stateful = requires(T& object, const T& constant, const Dict& dict) {
  { constant.state_dict() } -> std::convertible_to<Dict>;
  object.load_state_dict(dict);
};

/// The position of a loader as {"epoch", "batches", "samples", ...}.
Dict position_dict(const data::LoaderPosition& position);
/// The inverse of position_dict(). Throws CheckpointError when an entry is missing or does not fit.
data::LoaderPosition position_of(const Dict& dict);

namespace checkpointing {
class Committer;
struct TrainingStateAccess;
}  // namespace checkpointing

/// The parts of a training run by name: collects their states for a checkpoint and restores them. Keeps
/// references, so the parts must outlive it.
///
///     TrainingState training;
///     training.add("model", ddp).add("optimizer", optimizer).add("loader", loader).add("epoch", epoch);
///     training.add_generator();
///     manager.save(step, training.state_dict());
///     if (auto checkpoint = manager.load_latest()) training.load_state_dict(checkpoint->contents);
class TrainingState {
 public:
  /// The ranks whose random states, gradients and metrics are saved together. Default: the default group or,
  /// without one, this process alone.
  explicit TrainingState(const std::optional<ProcessGroup>& process_group = std::nullopt);

  /// Adds a part: a module, a holder, a DistributedDataParallel, DataParallel or FSDPModule; an optimizer; a scheduler; a
  /// loader; a Stateful type; a bool, a number, a string or a Value. Throws ArgumentError when the name is
  /// taken. With a ZeroRedundancyOptimizer state_dict() is collective: it has the states of all ranks on rank
  /// 0, and elsewhere those of the rank.
  template <typename Part>
  TrainingState& add(const std::string& name, Part& part) {
    if constexpr (std::derived_from<Part, torch::optim::Optimizer>) {
      return add_optimizer(name, part);
    } else if constexpr (std::derived_from<Part, torch::nn::Module>) {
      return add_module(name, [&part]() -> torch::nn::Module& { return part; });
    } else if constexpr (ModulePointer<Part>) {
      return add_module(name, [&part]() -> torch::nn::Module& { return *part; });
    } else if constexpr (std::derived_from<Part, torch::optim::LRScheduler>) {
      return add_part(
          name, {.save = [&part] { return Value(lockstep::state_dict(part)); },
                 .load = [&part](const Value& value) { lockstep::load_state_dict(part, value.as_dict()); }});
    } else if constexpr (requires(data::LoaderPosition position) {
                           part.seek(position);
                           position = part.position();
                         }) {
      return add_position(name,
                          {.save = [&part] { return Value(position_dict(part.position())); },
                           .load = [&part](const Value& value) { part.seek(position_of(value.as_dict())); }},
                          shrink_check_of(part));
    } else if constexpr (requires(const Dict& dict) { part.load_state_dict(dict, group_); }) {
      return add_part(name,
                      {.save = [&part, group = group_] { return Value(Dict(part.state_dict(group))); },
                       .load = [&part, group = group_](
                                   const Value& value) { part.load_state_dict(value.as_dict(), group); }},
                      own_functions(name, part));
    } else if constexpr (std::same_as<std::remove_const_t<Part>, FSDPModule>) {
      return add_module_part(name,
                             {.save = [&part] { return Value(Dict(part.state_dict())); },
                              .load = [&part](const Value& value) { part.load_state_dict(value.as_dict()); }},
                             [&part]() -> torch::nn::Module& { return *part.module(); });
    } else if constexpr (requires(std::source_location place) { part.state_dict(place); }) {
      return add_part(name, {.save = [&part] { return Value(Dict(part.state_dict())); },
                             .load = [&part](const Value& value) { part.load_state_dict(value.as_dict()); }});
    } else if constexpr (Stateful<Part>) {
      return add_functions(
          name, [&part] { return Value(Dict(part.state_dict())); },
          [&part](const Value& value) { part.load_state_dict(value.as_dict()); });
    } else {
      return add_functions(
          name, [&part] { return Value(part); }, [&part](const Value& value) { assign(part, value); });
    }
  }

  /// Adds the random states of every rank: LibTorch's default CPU generator (in a thread of spawn_threads()
  /// the thread's own) and those of the GPUs that the process may use. state_dict() is then collective. A
  /// rank without a saved state keeps its own.
  TrainingState& add_generator(const std::string& name = "generator");

  /// Adds the gradients of a module, for checkpoints between two optimizer steps while gradients accumulate.
  /// state_dict() is then collective. Gradients that differ between ranks, as under no_sync(), are gathered
  /// on rank 0 and can only be loaded by the same number of ranks.
  TrainingState& add_gradients(const std::string& name, ModuleRef module);

  /// Adds any part by functions that return and restore its value.
  TrainingState& add_functions(std::string name, std::function<Value()> save,
                               std::function<void(const Value&)> load);

  /// The states of all parts. Tensors share the data of the run.
  Dict state_dict(std::source_location where = std::source_location::current()) const;
  /// Restores each part, in the order in which they were added. Throws CheckpointError that names the part
  /// that is missing in the dict or does not fit. Other entries of the dict are ignored.
  void load_state_dict(const Dict& state_dict,
                       std::source_location where = std::source_location::current()) const;

  /// Within elastic::run(), keeps the state of this rank in memory of the host, from which the run continues after the
  /// loss of a rank; elsewhere does nothing. Call it on all ranks after the same step, behind optimizer.step().
  ///
  /// The state is this rank's alone: its random states, gradients and metrics. The memory holds two copies of it.
  /// Functions of user-defined parts must not call other ranks. Throws Error when memory is short, and the errors of a
  /// call, such as PeerLost, which must leave the function that elastic::run() calls.
  void commit(std::source_location where = std::source_location::current()) const;

 private:
  friend struct checkpointing::TrainingStateAccess;

  struct Functions {
    std::function<Value()> save{};
    std::function<void(const Value&)> load{};
  };
  struct Entry {
    std::string name;
    Functions all;             // for checkpoints; may make calls to the other ranks
    Functions own;             // for commits: makes none
    bool is_position = false;  // of a loader
    bool is_gradients = false;
    // Throws ArgumentError if the other ranks cannot go on without the part of a lost rank. Null: they can.
    std::function<void()> require_can_shrink{};
  };

  TrainingState& add_module(const std::string& name, std::function<torch::nn::Module&()> module);
  // `all`: for checkpoints.
  TrainingState& add_module_part(const std::string& name, Functions all,
                                 std::function<torch::nn::Module&()> module);
  TrainingState& add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer);
  // For parts of the library: calls of `all` have the line of the caller of state_dict() or load_state_dict().
  TrainingState& add_part(std::string name, Functions all, Functions own);
  // `functions` make no calls.
  TrainingState& add_part(std::string name, Functions functions);
  TrainingState& add_position(std::string name, Functions functions,
                              std::function<void()> require_can_shrink);
  TrainingState& add_entry(Entry entry);
  static Functions without_own_state(std::string name);

  // For a part whose state_dict() is that of all ranks together.
  template <typename Part>
  static Functions own_functions(const std::string& name, Part& part) {
    if constexpr (requires(const Dict& dict) {
                    { part.own_state_dict() } -> std::convertible_to<Dict>;
                    part.load_own_state_dict(dict);
                  }) {
      return {.save = [&part] { return Value(Dict(part.own_state_dict())); },
              .load = [&part](const Value& value) { part.load_own_state_dict(value.as_dict()); }};
    } else {
      return without_own_state(name);
    }
  }

  template <typename Part>
  static std::function<void()> shrink_check_of(Part& part) {
    if constexpr (requires { part.require_can_shrink(); }) {
      return [&part] { part.require_can_shrink(); };
    } else {
      return &refuse_to_share_again;
    }
  }
  [[noreturn]] static void refuse_to_share_again();

  template <typename Part>
  static void assign(Part& part, const Value& value) {
    if constexpr (std::is_same_v<Part, bool>) {
      part = value.as_bool();
    } else if constexpr (std::is_integral_v<Part>) {
      part = static_cast<Part>(value.as_int());
    } else if constexpr (std::is_floating_point_v<Part>) {
      part = static_cast<Part>(value.as_double());
    } else if constexpr (std::is_same_v<Part, std::string>) {
      part = value.as_string();
    } else {
      static_assert(std::is_same_v<Part, Value>,
                    "define state_dict() and load_state_dict(), or use add_functions()");
      part = value;
    }
  }

  std::optional<ProcessGroup> group_;
  std::vector<Entry> entries_;
  std::vector<std::function<torch::nn::Module&()>> modules_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  checkpointing::Committer* committer_ = nullptr;  // within elastic::run()
};

/// The progress of a run, in the layout of PyTorch's ImageNet example.
struct EpochCheckpoint {
  std::int64_t epoch = 0;  ///< the next epoch to run
  std::string arch = {};   ///< the architecture, such as "resnet50"
  double best_acc = 0;     ///< best accuracy so far
};

/// Returns {"epoch", "arch", "state_dict", "best_acc", "optimizer"}, in this order. Tensors share the data of
/// the module and the optimizer. Add further entries with set(). PyTorch has the layout in its ImageNet
/// example, not a function.
Dict make_epoch_checkpoint(const EpochCheckpoint& progress, ConstModuleRef module,
                           const torch::optim::Optimizer& optimizer);

/// Loads module and optimizer from such a dict, written by C++ or Python, and returns the other entries.
/// Numbers may be tensors of one element. "best_acc1", the example's current name, replaces a missing
/// "best_acc". Other entries are ignored. Throws CheckpointError that names the entry that is missing or does
/// not fit, or both architectures if `arch` is given and differs; module and optimizer are then unchanged.
EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, ModuleRef module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch = "");

}  // namespace lockstep
