// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>

#include <ATen/ops/stack.h>
#include <torch/nn/utils/clip_grad.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/base/world.h>
#include <lockstep/ddp/utils.h>
#include <lockstep/training/trainer.h>

#include "base/throw_error.h"
#include "metrics/sum_over_ranks.h"
#include "runtime/run.h"
#include "training/finite.h"
#include "training/stop_signals.h"

namespace lockstep {
namespace {

void check_at_least(std::int64_t least, std::int64_t value, const char* name) {
  if (value < least) throw_error<ArgumentError>("Trainer: {} = {}; give at least {}", name, value, least);
}

TrainerOptions checked(TrainerOptions options) {
  check_at_least(0, options.epochs, "epochs");
  check_at_least(0, options.max_steps.value_or(0), "max_steps");
  check_at_least(1, options.accumulation_steps, "accumulation_steps");
  check_at_least(0, options.checkpoint_interval, "checkpoint_interval");
  check_at_least(1, options.epochs_per_checkpoint, "epochs_per_checkpoint");
  check_at_least(1, options.log_interval, "log_interval");
  check_at_least(1, options.agree_interval, "agree_interval");
  if (options.max_grad_norm && !(*options.max_grad_norm > 0))
    throw_error<ArgumentError>("Trainer: max_grad_norm = {}; give more than 0", *options.max_grad_norm);
  if (options.resume && options.checkpoints.empty())
    throw ArgumentError("Trainer: resume needs a folder of checkpoints");
  return options;
}

std::optional<ProcessGroup> group_of(const DistributedDataParallelModule* ddp, bool is_sharded) {
  const auto group = ddp == nullptr ? runtime::group_or_default({}) : ddp->process_group();
  if (ddp == nullptr && !is_sharded && group && group->size() > 1)
    throw_error<ArgumentError>(
        "Trainer: the module is not a DistributedDataParallel, nor of fully_shard(), so the {} ranks would "
        "train {} different models",
        group->size(), group->size());
  return group;
}

c10::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

template <typename Callbacks, typename... Arguments>
void call_all(const Callbacks& callbacks, const Arguments&... arguments) {
  for (const auto& callback : callbacks) callback(arguments...);
}

}  // namespace

Trainer::Trainer(torch::nn::Module& module, torch::optim::Optimizer& optimizer, TrainerOptions options)
    : options_(checked(std::move(options))),
      module_(module),
      ddp_(dynamic_cast<DistributedDataParallelModule*>(&module)),
      sharded_(FSDPModule::find(module)),
      optimizer_(optimizer),
      group_(group_of(ddp_, sharded_.has_value())),
      device_(device_of(module)),
      state_(group_) {
  if (!options_.checkpoints.empty())
    manager_.emplace(options_.checkpoints,
                     CheckpointManagerOptions{.keep_last = options_.keep_last,
                                              .keep_best = options_.keep_best,
                                              .higher_is_better = options_.higher_is_better,
                                              .async_save = options_.async_save,
                                              .process_group = group_,
                                              .writing = sharded_ ? CheckpointWriting::every_rank
                                                                  : CheckpointWriting::first_rank});
  if (sharded_) {
    state_.add("model", *sharded_);
  } else {
    state_.add("model", module_);
  }
  state_.add("optimizer", optimizer_).add_generator();
  state_.add("epoch", epoch_).add("step", step_).add("batch", batch_).add("reported_loss", reported_loss_);
  if (options_.autocast == at::kHalf) {
    const auto apart = sharded_ ? group_ : std::nullopt;  // each rank sees the gradients of its rows
    state_.add("scaler", scaler_.emplace(device_, amp::GradScalerOptions{.process_group = apart}));
  }
  if (options_.accumulation_steps > 1 && !sharded_)
    state_.add("batches", pending_).add_gradients("gradients", module_);
}

Trainer::~Trainer() = default;

Trainer& Trainer::stop_early(EarlyStopping& stopping, const std::string& name) {
  state_.add(name, stopping);
  stopping_ = &stopping;
  return on_metric("EarlyStopping", [&stopping](double metric) { stopping.step(metric); });
}

Trainer& Trainer::on_metric(const char* part, std::function<void(double)> callback) {
  if (options_.metric.empty())
    throw_error<ArgumentError>("Trainer: {} needs options.metric, a number of the validation", part);
  return on_epoch_end(
      [this, callback = std::move(callback)](const Scalars& validation) { callback(metric_of(validation)); });
}

std::shared_ptr<void> Trainer::begin_fit() {
  if (options_.resume) resume();
  if (is_thread_rank()) return nullptr;
  return std::make_shared<training::StopSignals>(options_.stop_signals);
}

void Trainer::resume() {
  if (!sharded_) {
    if (const auto saved = manager_->load_latest()) state_.load_state_dict(saved->contents.as_dict());
    return;
  }
  auto contents = state_.state_dict();
  if (manager_->load_latest(contents)) state_.load_state_dict(contents);
}

bool Trainer::begin_epoch(std::optional<std::int64_t> batches) {
  stopped_ = stopped_ || is_over();
  if (stopped_ || epoch_ >= options_.epochs) return false;
  module_.train();
  batches_ = batches;
  if (options_.progress)
    bar_.emplace(ProgressOptions{.desc = fmt::format("epoch {}/{}", epoch_ + 1, options_.epochs),
                                 .total = batches,
                                 .unit = "batch",
                                 .initial = batch_});
  return true;
}

bool Trainer::train_batch(const std::function<at::Tensor()>& loss_of) {
  ++batch_;
  if (bar_) bar_->update();
  const bool ends_step = ++pending_ == options_.accumulation_steps;
  losses_.push_back(backward(loss_of, ends_step));
  reported_loss_.update(losses_.back());
  if (!ends_step) return true;
  optimize();
  stopped_ = stopped_ || is_over();
  const bool at_interval = options_.checkpoint_interval != 0 && step_ % options_.checkpoint_interval == 0;
  if (stopped_ || (at_interval && !(batch_ == batches_ && saves_epoch(epoch_ + 1)))) save();
  if (stopped_) bar_.reset();
  return !stopped_;
}

at::Tensor Trainer::backward(const std::function<at::Tensor()>& loss_of, bool ends_step) {
  std::optional<NoSync> on_this_rank;
  if (ddp_ != nullptr && !ends_step) on_this_rank.emplace(ddp_->no_sync());
  if (sharded_) sharded_->set_requires_gradient_sync(ends_step);
  std::optional<amp::Autocast> autocast;
  if (options_.autocast) autocast.emplace(device_, amp::AutocastOptions{.dtype = options_.autocast});
  const auto loss = loss_of();
  autocast.reset();
  const auto share = options_.accumulation_steps > 1 ? loss / options_.accumulation_steps : loss;
  (scaler_ ? scaler_->scale(share) : share).backward();
  return loss.detach();
}

void Trainer::optimize() {
  pending_ = 0;
  loss_ = at::stack(std::exchange(losses_, {})).mean();
  clip();
  if (step_ % options_.agree_interval == 0) agree(step_ + 1);
  if (scaler_) {
    scaler_->step(optimizer_);
    scaler_->update();
  } else {
    optimizer_.step();
  }
  optimizer_.zero_grad();
  ++step_;
  call_all(on_step_, loss_);
  if (step_ % options_.log_interval == 0) report();
}

void Trainer::clip() {
  if (!options_.max_grad_norm) return;
  if (scaler_) scaler_->unscale_(optimizer_);
  const auto most = *options_.max_grad_norm;
  if (sharded_) {
    grad_norm_ = clip_grad_norm_(*sharded_, most);
  } else {
    grad_norm_ = ddp_ != nullptr ? clip_grad_norm_(*ddp_, most)
                                 : torch::nn::utils::clip_grad_norm_(module_.parameters(), most);
  }
}

// On whether the last loss of each rank is finite, and on whether to stop.
void Trainer::agree(std::int64_t step) {
  const auto loss = loss_.defined() ? loss_.item<double>() : 0;
  const bool is_finite = scaler_ || (std::isfinite(loss) && std::isfinite(grad_norm_.value_or(0)));
  const bool stops = stop_requested_ || training::StopSignals::arrived();
  const auto sums = metrics::sum_over_ranks({is_finite ? 0.0 : 1.0, stops ? 1.0 : 0.0}, group_);
  if (sums[0] > 0) training::throw_non_finite(loss, module_, step, group_);
  stopped_ = sums[1] > 0;
}

void Trainer::report() {
  Scalars scalars{{"loss", reported_loss_.compute(group_)},
                  {"lr", optimizer_.param_groups().front().options().get_lr()},
                  {"epoch", static_cast<double>(epoch_)}};
  if (grad_norm_) scalars["grad_norm"] = *grad_norm_;
  reported_loss_.reset();
  if (bar_) bar_->set_postfix(scalars);
  call_all(on_log_, step_, scalars);
}

bool Trainer::is_over() const {
  return step_ >= options_.max_steps.value_or(step_ + 1) || (stopping_ != nullptr && stopping_->stops());
}

double Trainer::metric_of(const Scalars& validation) const {
  const auto metric = validation.find(options_.metric);
  if (metric == validation.end())
    throw_error<ArgumentError>("Trainer: the validation gives no '{}', which is options.metric",
                               options_.metric);
  return metric->second;
}

void Trainer::end_epoch() {
  Scalars validation;
  bar_.reset();
  module_.eval();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& validate : on_validate_) validation.merge(validate());
  }
  std::optional<double> metric;
  if (!options_.metric.empty()) metric = metric_of(validation);
  if (!validation.empty()) call_all(on_log_, step_, validation);
  call_all(on_epoch_end_, validation);
  agree(step_);
  ++epoch_;
  batch_ = 0;
  stopped_ = stopped_ || is_over();
  if (stopped_ || saves_epoch(epoch_)) save(metric);
}

bool Trainer::saves_epoch(std::int64_t epoch) const {
  return epoch == options_.epochs || epoch % options_.epochs_per_checkpoint == 0;
}

void Trainer::save(std::optional<double> metric) {
  if (!manager_) return;
  if (sharded_ && pending_ != 0) {
    throw_error<ArgumentError>(
        "Trainer: a checkpoint after {} of {} batches of a step would need gradients of whole parameters, "
        "which fully_shard() does not save; let accumulation_steps divide the batches of an epoch",
        pending_, options_.accumulation_steps);
  }
  manager_->save(step_, state_.state_dict(), metric);
}

}  // namespace lockstep
