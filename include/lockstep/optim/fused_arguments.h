// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

// The arguments of the optimizers in optim/fused.h, by name, for all parameters and for a group.
namespace lockstep::optim {

/// PyTorch's argument `fused`. Only true compiles; for false use the optimizers of torch::optim.
class Fused {
 public:
  consteval Fused(bool fused) {  // NOLINT: implicit
    if (!fused) for_false_use_torch_optim();
  }

 private:
  static void for_false_use_torch_optim() {}
};

/// Arguments of Adam by name.
struct AdamArguments {
  double lr = 1e-3;  ///< learning rate
  std::tuple<double, double> betas{0.9,
                                   0.999};  ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-8;                        ///< added to the denominator
  double weight_decay = 0;                  ///< factor of the L2 penalty
  bool amsgrad = false;                     ///< divides by the greatest average of squares so far
  std::optional<bool> foreach = {};         ///< has no effect: the fused way is taken
  bool maximize = false;                    ///< maximizes the objective instead of minimizing it
  Fused fused = true;                       ///< these are the fused ones
};

/// Arguments of AdamW by name.
struct AdamWArguments {
  double lr = 1e-3;  ///< learning rate
  std::tuple<double, double> betas{0.9,
                                   0.999};  ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-8;                        ///< added to the denominator
  double weight_decay = 1e-2;               ///< factor of the decoupled decay
  bool amsgrad = false;                     ///< divides by the greatest average of squares so far
  bool maximize = false;                    ///< maximizes the objective instead of minimizing it
  std::optional<bool> foreach = {};         ///< has no effect: the fused way is taken
  Fused fused = true;                       ///< these are the fused ones
};

/// Arguments of SGD by name.
struct SGDArguments {
  double lr = 1e-3;                  ///< learning rate
  double momentum = 0;               ///< factor of the earlier steps' gradients
  double dampening = 0;              ///< the share of the gradient that does not enter the momentum
  double weight_decay = 0;           ///< factor of the L2 penalty
  bool nesterov = false;             ///< Nesterov momentum
  bool maximize = false;             ///< maximizes the objective instead of minimizing it
  std::optional<bool> foreach = {};  ///< has no effect: the fused way is taken
  Fused fused = true;                ///< these are the fused ones
};

/// The first field of options that are given by name only. It takes no value.
class OnlyByName {
 public:
  OnlyByName() {}  // NOLINT: not an aggregate, so that a list without names does not fit
};

/// Decay rates that may be left out: `{.betas = {0.9, 0.95}}`.
struct GivenBetas : std::optional<std::tuple<double, double>> {
  using optional::optional;
  GivenBetas() = default;
  GivenBetas(double first, double second) : optional(std::in_place, first, second) {}
};

/// A group of parameters of Adam or AdamW by name, with what differs from the optimizer's arguments. PyTorch: a dict
/// such as `{"params": decay, "weight_decay": 0.1}`.
struct AdamGroup {
  OnlyByName names = {};                    ///< leave it out
  std::vector<at::Tensor> params = {};      ///< the parameters of the group
  std::optional<double> lr = {};            ///< AdamArguments::lr
  GivenBetas betas = {};                    ///< AdamArguments::betas
  std::optional<double> eps = {};           ///< AdamArguments::eps
  std::optional<double> weight_decay = {};  ///< AdamArguments::weight_decay, or AdamWArguments::weight_decay
  std::optional<bool> amsgrad = {};         ///< AdamArguments::amsgrad
  std::optional<bool> maximize = {};        ///< AdamArguments::maximize
};

/// A group of parameters of SGD by name, with what differs from the optimizer's arguments. PyTorch: a dict such as
/// `{"params": head, "lr": 0.1}`.
struct SGDGroup {
  OnlyByName names = {};                    ///< leave it out
  std::vector<at::Tensor> params = {};      ///< the parameters of the group
  std::optional<double> lr = {};            ///< SGDArguments::lr
  std::optional<double> momentum = {};      ///< SGDArguments::momentum
  std::optional<double> dampening = {};     ///< SGDArguments::dampening
  std::optional<double> weight_decay = {};  ///< SGDArguments::weight_decay
  std::optional<bool> nesterov = {};        ///< SGDArguments::nesterov
  std::optional<bool> maximize = {};        ///< SGDArguments::maximize
};

}  // namespace lockstep::optim
