// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/base/literal.h>
#include <lockstep/serialize/value.h>

namespace lockstep::optim {

class Schedule;

/// One number for all parameter groups, or a list with one per group.
class PerGroup {
 public:
  PerGroup(double number) : numbers_{number} {}                                      // NOLINT: as in Python
  PerGroup(std::initializer_list<double> list) : numbers_(list), is_list_(true) {}   // NOLINT
  PerGroup(std::vector<double> list) : numbers_(std::move(list)), is_list_(true) {}  // NOLINT
  /// Throws ArgumentError that begins with `name` when the list has not one number per group.
  std::vector<double> values(const std::string& name, std::size_t groups) const;
  /// The number for all groups; nullopt for a list.
  std::optional<double> number() const { return is_list_ ? std::nullopt : std::optional(numbers_.front()); }

 private:
  std::vector<double> numbers_;
  bool is_list_ = false;
};

/// A scheduler of any class below. Arguments are given as in Python, by position or by
/// name:
///
///     optim::StepLR scheduler(optimizer, 30, 0.1);
///     optim::StepLR by_name(optimizer, {.step_size = 30, .gamma = 0.1});
///
/// Copies share their state, like Python's variables. Schedulers work over LibTorch's and Lockstep's optimizers. Rates are Python's to the bit, also after rates
/// were set by hand, and so are arguments, defaults and state dicts. An invalid argument is an ArgumentError.
///
/// As in Python, the schedulers of an optimizer share its initial rates: those at the construction of the
/// first scheduler that still lives. They are part of the optimizer's state_dict() ("initial_lr"), so
/// construct schedulers before loading it. The optimizer must outlive them. PyTorch:
/// `torch.optim.lr_scheduler.LRScheduler`.
class LRScheduler {
 public:
  /// Advances the schedule. Call it after the optimizer's step(), once per epoch or batch, whichever is the
  /// unit of the arguments. Throws ArgumentError when a rate would not be finite and, for most schedulers,
  /// when a parameter group was added.
  void step(std::source_location where = std::source_location::current());
  /// The rate of each parameter group. PyTorch: `get_last_lr()`.
  const std::vector<double>& get_last_lr() const;

  /// The state of the schedule and its arguments, with Python's names.
  Dict state_dict() const;
  /// Loads the entries of the dict, arguments included, as Python does. The rates are in the optimizer's
  /// state dict. Throws CheckpointError that names the entry that does not fit; the scheduler is then
  /// unchanged.
  void load_state_dict(const Dict& state_dict, std::source_location where = std::source_location::current());

 protected:
  explicit LRScheduler(std::shared_ptr<Schedule> schedule);
  std::shared_ptr<Schedule> schedule_;

 private:
  friend class Schedule;
};

/// The factor of an epoch, which is counted from 0.
using LrLambda = std::function<double(std::int64_t epoch)>;

/// Sets the rate to the initial rate times `lr_lambda(epoch)`. A list has a function per group. Functions are
/// not saved. PyTorch: `LambdaLR`.
struct LambdaLR : LRScheduler {
  LambdaLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda,
           std::source_location where = std::source_location::current());
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<LrLambda> lr_lambda,
           std::source_location where = std::source_location::current());
};

/// Multiplies the rate by `lr_lambda(epoch)` from epoch 1 on. Functions are as in LambdaLR. PyTorch:
/// `MultiplicativeLR`.
struct MultiplicativeLR : LRScheduler {
  MultiplicativeLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda,
                   std::source_location where = std::source_location::current());
  MultiplicativeLR(torch::optim::Optimizer& optimizer, std::vector<LrLambda> lr_lambda,
                   std::source_location where = std::source_location::current());
};

/// Arguments of StepLR by name.
struct StepLROptions {
  std::int64_t step_size;  ///< epochs between two multiplications
  double gamma = 0.1;      ///< the factor
};

/// Multiplies the rate by `gamma` every `step_size` epochs. `torch::optim::StepLR` does so a call later.
/// PyTorch: `StepLR`.
struct StepLR : LRScheduler {
  StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options,
         std::source_location where = std::source_location::current());
  template <std::integral Count>  // so that `{}` is the options, here and below
  StepLR(torch::optim::Optimizer& optimizer, Count step_size, double gamma = 0.1,
         std::source_location where = std::source_location::current())
      : StepLR(optimizer, StepLROptions{static_cast<std::int64_t>(step_size), gamma}, where) {}
};

/// Arguments of MultiStepLR by name.
struct MultiStepLROptions {
  std::vector<std::int64_t> milestones;  ///< epochs of the multiplications
  double gamma = 0.1;                    ///< the factor
};

/// Multiplies the rate by `gamma` at each epoch of `milestones`. PyTorch: `MultiStepLR`.
struct MultiStepLR : LRScheduler {
  MultiStepLR(torch::optim::Optimizer& optimizer, const MultiStepLROptions& options,
              std::source_location where = std::source_location::current());
  template <typename = void>  // so that `{.milestones = ...}` is the options, here and below
  MultiStepLR(torch::optim::Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1,
              std::source_location where = std::source_location::current())
      : MultiStepLR(optimizer, MultiStepLROptions{std::move(milestones), gamma}, where) {}
};

/// Arguments of ConstantLR by name.
struct ConstantLROptions {
  double factor = 1.0 / 3;       ///< from 0 to 1
  std::int64_t total_iters = 5;  ///< the epoch from which the factor is 1
};

/// Multiplies the rate by `factor`, from 0 to 1, until epoch `total_iters`. PyTorch: `ConstantLR`.
struct ConstantLR : LRScheduler {
  explicit ConstantLR(torch::optim::Optimizer& optimizer, const ConstantLROptions& options = {},
                      std::source_location where = std::source_location::current());
  template <std::convertible_to<double> Number>
  ConstantLR(torch::optim::Optimizer& optimizer, Number factor, std::int64_t total_iters = 5,
             std::source_location where = std::source_location::current())
      : ConstantLR(optimizer, ConstantLROptions{static_cast<double>(factor), total_iters}, where) {}
};

/// Arguments of LinearLR by name.
struct LinearLROptions {
  double start_factor = 1.0 / 3;  ///< the first factor, above 0
  double end_factor = 1.0;        ///< the last factor
  std::int64_t total_iters = 5;   ///< epochs from the first factor to the last one
};

/// Multiplies the rate by a factor that goes from `start_factor`, above 0, to `end_factor` in `total_iters`
/// epochs. In a SequentialLR it is the linear warm-up. PyTorch: `LinearLR`.
struct LinearLR : LRScheduler {
  explicit LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options = {},
                    std::source_location where = std::source_location::current());
  template <std::convertible_to<double> Number>
  LinearLR(torch::optim::Optimizer& optimizer, Number start_factor, double end_factor = 1.0,
           std::int64_t total_iters = 5, std::source_location where = std::source_location::current())
      : LinearLR(optimizer, LinearLROptions{static_cast<double>(start_factor), end_factor, total_iters},
                 where) {}
};

/// Arguments of ExponentialLR by name.
struct ExponentialLROptions {
  double gamma;  ///< the factor, above 0
};

/// Multiplies the rate by `gamma`, above 0, every epoch. PyTorch: `ExponentialLR`.
struct ExponentialLR : LRScheduler {
  ExponentialLR(torch::optim::Optimizer& optimizer, const ExponentialLROptions& options,
                std::source_location where = std::source_location::current());
  template <std::convertible_to<double> Number>
  ExponentialLR(torch::optim::Optimizer& optimizer, Number gamma,
                std::source_location where = std::source_location::current())
      : ExponentialLR(optimizer, ExponentialLROptions{static_cast<double>(gamma)}, where) {}
};

/// Arguments of PolynomialLR by name.
struct PolynomialLROptions {
  std::int64_t total_iters = 5;  ///< epochs until the rate is 0; at least 1
  double power = 1.0;            ///< the degree of the polynomial
};

/// Lowers the rate to 0 in `total_iters` epochs, as a polynomial of degree `power`. PyTorch: `PolynomialLR`.
struct PolynomialLR : LRScheduler {
  explicit PolynomialLR(torch::optim::Optimizer& optimizer, const PolynomialLROptions& options = {},
                        std::source_location where = std::source_location::current());
  template <std::integral Count>
  PolynomialLR(torch::optim::Optimizer& optimizer, Count total_iters, double power = 1.0,
               std::source_location where = std::source_location::current())
      : PolynomialLR(optimizer, PolynomialLROptions{static_cast<std::int64_t>(total_iters), power}, where) {}
};

/// Arguments of CosineAnnealingLR by name.
struct CosineAnnealingLROptions {
  std::int64_t T_max;    ///< epochs until the rate is eta_min
  double eta_min = 0.0;  ///< the lowest rate
};

/// Lowers the rate to `eta_min` in `T_max` epochs, as half a cosine. PyTorch: `CosineAnnealingLR`.
struct CosineAnnealingLR : LRScheduler {
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const CosineAnnealingLROptions& options,
                    std::source_location where = std::source_location::current());
  template <std::integral Count>
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, Count T_max, double eta_min = 0.0,
                    std::source_location where = std::source_location::current())
      : CosineAnnealingLR(optimizer, CosineAnnealingLROptions{static_cast<std::int64_t>(T_max), eta_min},
                          where) {}
};

/// Arguments of CosineAnnealingWarmRestarts by name.
struct CosineAnnealingWarmRestartsOptions {
  std::int64_t T_0;         ///< epochs of the first half cosine
  std::int64_t T_mult = 1;  ///< factor from the length of a half cosine to that of the next one
  double eta_min = 0.0;     ///< the lowest rate
};

/// Half cosines, the first of `T_0` epochs, each next one `T_mult` times as long. PyTorch:
/// `CosineAnnealingWarmRestarts`.
struct CosineAnnealingWarmRestarts : LRScheduler {
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                              const CosineAnnealingWarmRestartsOptions& options,
                              std::source_location where = std::source_location::current());
  template <std::integral Count>
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, Count T_0, std::int64_t T_mult = 1,
                              double eta_min = 0.0,
                              std::source_location where = std::source_location::current())
      : CosineAnnealingWarmRestarts(
            optimizer, CosineAnnealingWarmRestartsOptions{static_cast<std::int64_t>(T_0), T_mult, eta_min},
            where) {}
  using LRScheduler::step;
  /// Goes to an epoch or a fraction of one, such as `epoch + double(batch) / batches`. Throws ArgumentError
  /// below 0.
  void step(double epoch, std::source_location where = std::source_location::current());
};

/// How the height of the cycles changes: not, halved after each cycle, or times gamma after each step.
enum class CyclicMode : std::uint8_t {
  triangular,   ///< all cycles have the same height
  triangular2,  ///< the height is halved after each cycle
  exp_range,    ///< the height is multiplied by gamma after each step
};
/// The names of the enumerators, which Literal accepts.
OneOf<"triangular", "triangular2", "exp_range"> literals_of(CyclicMode);

/// The argument of CyclicLROptions::scale_fn: the number of the cycle, from 1, or of the step, from 0.
enum class ScaleMode : std::uint8_t {
  cycle,       ///< the number of the cycle, from 1
  iterations,  ///< the number of the step, from 0
};
OneOf<"cycle", "iterations"> literals_of(ScaleMode);

/// Options of CyclicLR, with PyTorch's names and defaults.
struct CyclicLROptions {
  PerGroup base_lr;                                 ///< lowest rate, at which cycles begin
  PerGroup max_lr;                                  ///< highest rate
  std::int64_t step_size_up = 2000;                 ///< steps from base_lr to max_lr
  std::optional<std::int64_t> step_size_down = {};  ///< default: step_size_up
  Literal<CyclicMode> mode = "triangular";          ///< how the height of the cycles changes
  double gamma = 1.0;                               ///< of "exp_range"
  std::function<double(double)> scale_fn = {};      ///< instead of `mode`; not saved
  Literal<ScaleMode> scale_mode = "cycle";          ///< what scale_fn gets
  /// Cycles the option `momentum`, or beta1 of an optimizer with `betas`, against the rate.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8;  ///< lowest momentum, at max_lr
  PerGroup max_momentum = 0.9;   ///< highest momentum, at the lowest rate
};

/// Cycles the rate between two bounds. PyTorch: `CyclicLR`.
struct CyclicLR : LRScheduler {
  CyclicLR(torch::optim::Optimizer& optimizer, const CyclicLROptions& options,
           std::source_location where = std::source_location::current());
  template <typename = void>
  CyclicLR(torch::optim::Optimizer& optimizer, const PerGroup& base_lr, const PerGroup& max_lr,
           std::int64_t step_size_up = 2000, std::source_location where = std::source_location::current())
      : CyclicLR(optimizer, {.base_lr = base_lr, .max_lr = max_lr, .step_size_up = step_size_up}, where) {}
};

/// The curve on which a rate goes from one value to another: half a cosine or a line.
enum class AnnealStrategy : std::uint8_t {
  cos,     ///< half a cosine
  linear,  ///< a line
};
OneOf<"cos", "linear"> literals_of(AnnealStrategy);

/// Options of OneCycleLR, with PyTorch's names and defaults.
struct OneCycleLROptions {
  PerGroup max_lr;                               ///< highest rate
  std::optional<std::int64_t> total_steps = {};  ///< steps of the cycle; or give epochs and steps_per_epoch
  std::optional<std::int64_t> epochs = {};       ///< with steps_per_epoch, instead of total_steps
  std::optional<std::int64_t> steps_per_epoch = {};  ///< batches
  double pct_start = 0.3;                            ///< the share of total_steps in which the rate rises
  Literal<AnnealStrategy> anneal_strategy = "cos";   ///< the curve between two rates
  /// Cycles the option `momentum`, or beta1 of an optimizer with `betas`, against the rate.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85;  ///< lowest momentum, at max_lr
  PerGroup max_momentum = 0.95;   ///< highest momentum, at the lowest rate
  double div_factor = 25.0;       ///< the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  ///< the last rate is the first rate / final_div_factor
  bool three_phase = false;  ///< fall back to the first rate, as fast as the rate rose, before the last phase
};

/// Raises the rate from max_lr / div_factor to max_lr, then lowers it to almost nothing. step() throws
/// ArgumentError after total_steps. PyTorch: `OneCycleLR`.
struct OneCycleLR : LRScheduler {
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options,
             std::source_location where = std::source_location::current());
  template <typename = void>
  OneCycleLR(torch::optim::Optimizer& optimizer, const PerGroup& max_lr, std::int64_t total_steps,
             std::source_location where = std::source_location::current())
      : OneCycleLR(optimizer, {.max_lr = max_lr, .total_steps = total_steps}, where) {}
};

/// Arguments of SWALR by name.
struct SWALROptions {
  PerGroup swa_lr;                                  ///< the last rate
  std::int64_t anneal_epochs = 10;                  ///< epochs until the rate is swa_lr
  Literal<AnnealStrategy> anneal_strategy = "cos";  ///< the curve between the rates
};

/// Anneals the rate to `swa_lr` in `anneal_epochs` epochs, for stochastic weight averaging. PyTorch:
/// `torch.optim.swa_utils.SWALR`.
struct SWALR : LRScheduler {
  SWALR(torch::optim::Optimizer& optimizer, const SWALROptions& options,
        std::source_location where = std::source_location::current());
  template <typename = void>
  SWALR(torch::optim::Optimizer& optimizer, const PerGroup& swa_lr, std::int64_t anneal_epochs = 10,
        Literal<AnnealStrategy> anneal_strategy = "cos",
        std::source_location where = std::source_location::current())
      : SWALR(optimizer, SWALROptions{swa_lr, anneal_epochs, anneal_strategy}, where) {}
};

/// Arguments of SequentialLR by name.
struct SequentialLROptions {
  std::vector<LRScheduler> schedulers;   ///< in the order in which they take turns
  std::vector<std::int64_t> milestones;  ///< first epochs of all schedulers but the first
};

/// One scheduler after another: `schedulers[i + 1]` begins at epoch `milestones[i]`. Only the first may
/// itself be a SequentialLR or ChainedScheduler. PyTorch: `SequentialLR`.
///
///     optim::LinearLR warmup(optimizer, 0.01, 1.0, 5);
///     optim::CosineAnnealingLR cosine(optimizer, 85);
///     optim::SequentialLR scheduler(optimizer, {warmup, cosine}, {5});
struct SequentialLR : LRScheduler {
  SequentialLR(torch::optim::Optimizer& optimizer, const SequentialLROptions& options,
               std::source_location where = std::source_location::current());
  SequentialLR(torch::optim::Optimizer& optimizer, std::vector<LRScheduler> schedulers,
               std::vector<std::int64_t> milestones,
               std::source_location where = std::source_location::current())
      : SequentialLR(optimizer, SequentialLROptions{std::move(schedulers), std::move(milestones)}, where) {}
};

/// Steps several schedulers of one optimizer, each of which changes the rate. PyTorch: `ChainedScheduler`.
struct ChainedScheduler : LRScheduler {
  explicit ChainedScheduler(const std::vector<LRScheduler>& schedulers,
                            std::source_location where = std::source_location::current());
  /// Throws ArgumentError unless the schedulers are of `optimizer`.
  ChainedScheduler(const std::vector<LRScheduler>& schedulers, torch::optim::Optimizer& optimizer,
                   std::source_location where = std::source_location::current());
};

/// How a rate grows with the number of ranks.
enum class ScalingRule : std::uint8_t {
  linear,  ///< rate times ranks
  sqrt,    ///< rate times the square root of the ranks
};
OneOf<"linear", "sqrt"> literals_of(ScalingRule);

/// The learning rate of `world_size` ranks whose gradients are averaged, from the rate of one rank with the
/// same batch size per rank. "linear": lr times world_size, the linear scaling rule
/// (https://arxiv.org/abs/1706.02677), usual with SGD. "sqrt": lr times its square root
/// (https://arxiv.org/abs/1404.5997), usual with Adam. Both need a warm-up. Throws ArgumentError for a
/// world_size below 1.
double scale_lr(double lr, std::int64_t world_size, Literal<ScalingRule> rule = "linear",
                std::source_location where = std::source_location::current());

}  // namespace lockstep::optim

/// The names of `torch.optim.lr_scheduler`.
namespace lockstep::optim::lr_scheduler {
using optim::ChainedScheduler, optim::ConstantLR, optim::CosineAnnealingLR,
    optim::CosineAnnealingWarmRestarts, optim::CyclicLR, optim::ExponentialLR, optim::LambdaLR,
    optim::LinearLR, optim::LRScheduler, optim::MultiplicativeLR, optim::MultiStepLR, optim::OneCycleLR,
    optim::PolynomialLR, optim::SequentialLR, optim::StepLR;
}  // namespace lockstep::optim::lr_scheduler

namespace lockstep::optim::swa_utils {
using optim::SWALR;
}  // namespace lockstep::optim::swa_utils
