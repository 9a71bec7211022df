// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/device/module_ref.h>

// Shared by what wraps or distributes a module: the module inside, the times of a step, clipping.
namespace lockstep::nn {

// In a program with `using namespace lockstep`, `nn::Linear` is LibTorch's. With `using namespace torch` beside it,
// `nn` is ambiguous: write `torch::nn::Linear`, or `namespace nn = lockstep::nn;`.
using namespace torch::nn;

/// The module type and pointer behind a TORCH_MODULE holder, a shared_ptr of a module, or a module that a
/// shared_ptr owns. pointer() throws ArgumentError for a module that none owns.
template <typename Module>
struct WrappedBy {
  /// The type of the module.
  using type = typename Module::ContainedType;
  /// The module of the holder.
  static std::shared_ptr<type> pointer(const Module& module) {
    return module.is_empty() ? nullptr : module.ptr();
  }
};

template <typename Impl>
struct WrappedBy<std::shared_ptr<Impl>> {
  using type = Impl;
  static std::shared_ptr<type> pointer(const std::shared_ptr<Impl>& module) { return module; }
};

/// The shared_ptr that owns `module`. Throws ArgumentError, which says what to do, if there is none.
std::shared_ptr<torch::nn::Module> owner_of(const torch::nn::Module& module);

template <std::derived_from<torch::nn::Module> Impl>
struct WrappedBy<Impl> {
  using type = Impl;
  static std::shared_ptr<type> pointer(const Impl& module) {
    return std::dynamic_pointer_cast<Impl>(owner_of(module));
  }
};

/// The base of modules that wrap another one: DataParallel and DistributedDataParallel.
class WrapperModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// The parameters of the wrapped module, each once, as in Python. LibTorch's own function repeats shared
  /// ones, and an optimizer would step them twice.
  std::vector<at::Tensor> parameters() const;
  /// The parameters of parameters() by name; names begin with "module.".
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;

  /// Throws ArgumentError if rejoin() is not supported, naming what prevents it. An elastic run calls it when
  /// it begins. Default: throws.
  virtual void require_can_rejoin() const;
  /// Begins anew over the default group, which has been formed again, perhaps with fewer ranks. The wrapped module and
  /// the addresses of its parameters stay; their values may differ between ranks until the caller restores
  /// them. Collective: an elastic run calls it on all ranks in the same order. Throws as require_can_rejoin().
  virtual void rejoin();
};

/// Throws ArgumentError unless everything in the module that communicates can continue over a default group that
/// was formed again: its wrappers (WrapperModule::require_can_rejoin()), layers over the default
/// group, and parameters of fully_shard() that the ranks neither share nor have over a mesh. elastic::run() calls it.
void require_can_rejoin(ConstModuleRef module);

/// Calls WrapperModule::rejoin() of the wrappers in the module, inner ones first, and drops the step that fully_shard()
/// has begun: what it has gathered, and gradients; the shards stay. Collective; each rank's module has the same
/// wrappers and shards. Throws as they do; then the group must be formed again, or the run ends. elastic::run() calls
/// it.
void rejoin(ModuleRef module);

}  // namespace lockstep::nn

namespace lockstep {

/// The times of a step on this rank, in milliseconds. PyTorch: `_get_ddp_logging_data`.
struct StepTimes {
  double forward = 0;   ///< ms of forward
  double backward = 0;  ///< from the end of forward to the last gradient, the loss included
  /// The wait for reductions after the last gradient: the cost of communication.
  double communication_exposed = 0;
  /// From the start of the first reduction to the last gradient: the part that overlaps computation.
  double communication_hidden = 0;
};

/// A loss, a gradient or a parameter is infinite or NaN. All ranks throw it in the same step.
/// Data: none.
/// Remedy: lower the learning rate, clip gradients, or use a GradScaler. PyTorch: `RuntimeError`.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Options of every clip_grad_norm_() under PyTorch's names: for DistributedDataParallel, fully_shard(),
/// parallelize_module(), pipelines and modules of one process.
///
/// The total norm is PyTorch's: the norm of a vector that holds each gradient's norm. A NaN in a gradient
/// gives NaN on all ranks (with norm_type 0 it counts as an element that is not zero).
///
/// | norm_type | norm |
/// |---|---|
/// | finite, not 0 | (sum of |x|^norm_type)^(1 / norm_type) of all elements |
/// | infinity, -infinity | the largest, the smallest |x| |
/// | 0 | the number of gradients that have an element other than 0 |
///
/// Gradients may be complex (|x| is the modulus), sparse (elements that are not stored are 0) and of several
/// dtypes. Gradients without elements, e.g. a rank's empty shard, do not count. The norm is 0 without
/// gradients. Norms of half-precision gradients are computed in float32, those over several ranks in float64.
/// Throws ArgumentError, before anything is sent, if norm_type is NaN, or if max_norm is negative or NaN.
/// Throws DesyncError if ranks that have parts of one gradient, or other gradients, pass different options.
struct ClipGradNormOptions {
  double norm_type = 2;  ///< the p of the p-norm; infinity for the greatest absolute value
  /// Throws NonFiniteError when the norm is infinite or NaN, before it scales the gradients.
  bool error_if_nonfinite = false;
};

}  // namespace lockstep
