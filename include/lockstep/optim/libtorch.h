// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>

#include <lockstep/base/literal.h>

// LibTorch's optimizers with Python's arguments by name:
// `optim::RMSprop optimizer(net->parameters(), {.lr = 1e-3, .momentum = 0.9});`
namespace lockstep::optim {

using Optimizer = torch::optim::Optimizer;  ///< LibTorch's class

/// LibTorch's optimizer `Base`, which also takes its arguments by name.
template <typename Base, typename ByName>
class WithArguments : public Base {
 public:
  /// The arguments by name.
  using Arguments = ByName;
  using Base::Base;
  template <typename = void>  // so that `{}` is LibTorch's options
  WithArguments(std::vector<at::Tensor> params, const Arguments& arguments)
      : Base(std::move(params), arguments.options()) {}
  template <typename = void>
  WithArguments(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                const Arguments& arguments)
      : Base(param_groups, arguments.options()) {}
};

/// PyTorch's argument `maximize`, which LibTorch's optimizers lack. Only false compiles.
class NoMaximize {
 public:
  consteval NoMaximize(bool maximize) {  // NOLINT: implicit
    if (maximize) for_true_negate_the_loss();
  }

 private:
  static void for_true_negate_the_loss() {}
};

/// Arguments of RMSprop by name.
struct RMSpropArguments {
  double lr = 1e-2;             ///< learning rate
  double alpha = 0.99;          ///< decay rate of the average of squares
  double eps = 1e-8;            ///< added to the denominator
  double weight_decay = 0;      ///< factor of the L2 penalty
  double momentum = 0;          ///< factor of the earlier steps' gradients
  bool centered = false;        ///< divides by the deviation instead of the root mean square
  NoMaximize maximize = false;  ///< true does not compile

  /// LibTorch's options with these values.
  torch::optim::RMSpropOptions options() const {
    torch::optim::RMSpropOptions options(lr);
    options.alpha(alpha).eps(eps).weight_decay(weight_decay).momentum(momentum).centered(centered);
    return options;
  }
};

/// Arguments of Adagrad by name.
struct AdagradArguments {
  double lr = 1e-2;                      ///< learning rate
  double lr_decay = 0;                   ///< the rate of step n is lr / (1 + (n - 1) * lr_decay)
  double weight_decay = 0;               ///< factor of the L2 penalty
  double initial_accumulator_value = 0;  ///< of the sums of squares
  double eps = 1e-10;                    ///< added to the denominator
  NoMaximize maximize = false;           ///< true does not compile

  /// LibTorch's options with these values.
  torch::optim::AdagradOptions options() const {
    torch::optim::AdagradOptions options(lr);
    options.lr_decay(lr_decay).weight_decay(weight_decay).eps(eps);
    options.initial_accumulator_value(initial_accumulator_value);
    return options;
  }
};

/// How LBFGS searches along its direction.
enum class LineSearch : std::uint8_t {
  strong_wolfe,  ///< for a step that fulfils the strong Wolfe conditions
};
OneOf<"strong_wolfe"> literals_of(LineSearch);

/// Arguments of LBFGS by name.
struct LBFGSArguments {
  double lr = 1;                              ///< learning rate
  std::int64_t max_iter = 20;                 ///< iterations of a step
  std::optional<std::int64_t> max_eval = {};  ///< default: max_iter * 1.25
  double tolerance_grad = 1e-7;               ///< greatest element of the gradient below which a step ends
  double tolerance_change = 1e-9;   ///< change of the loss or of a parameter below which a step ends
  std::int64_t history_size = 100;  ///< updates that are kept
  OptionalLiteral<LineSearch> line_search_fn = {};  ///< default: none; "strong_wolfe"

  /// LibTorch's options with these values.
  torch::optim::LBFGSOptions options() const {
    torch::optim::LBFGSOptions options(lr);
    options.max_iter(max_iter).max_eval(max_eval).history_size(history_size);
    options.tolerance_grad(tolerance_grad).tolerance_change(tolerance_change);
    if (line_search_fn) options.line_search_fn(std::string(Literal(*line_search_fn).text()));
    return options;
  }
};

using Adagrad = WithArguments<torch::optim::Adagrad, AdagradArguments>;  ///< LibTorch's class
using LBFGS = WithArguments<torch::optim::LBFGS, LBFGSArguments>;        ///< LibTorch's class
using RMSprop = WithArguments<torch::optim::RMSprop, RMSpropArguments>;  ///< LibTorch's class

}  // namespace lockstep::optim
