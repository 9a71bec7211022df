// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>
#include <utility>

#include <torch/nn/utils/clip_grad.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/base/world.h>
#include <lockstep/ddp/utils.h>
#include <lockstep/metrics/metrics.h>
#include <lockstep/training/progress.h>
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

void check_options(const TrainerOptions& options) {
  check_at_least(0, options.epochs, "epochs");
  check_at_least(1, options.accumulation_steps, "accumulation_steps");
  check_at_least(0, options.checkpoint_interval, "checkpoint_interval");
  check_at_least(1, options.epochs_per_checkpoint, "epochs_per_checkpoint");
  check_at_least(1, options.log_interval, "log_interval");
  check_at_least(1, options.agree_interval, "agree_interval");
  if (options.max_grad_norm && !(*options.max_grad_norm > 0))
    throw_error<ArgumentError>("Trainer: max_grad_norm = {}; give more than 0", *options.max_grad_norm);
  if (options.resume && options.checkpoints.empty())
    throw ArgumentError("Trainer: resume needs a folder of checkpoints");
}

std::optional<ProcessGroup> group_of(const DistributedDataParallelModule* ddp) {
  const auto group = ddp == nullptr ? runtime::group_or_default({}) : ddp->process_group();
  if (ddp == nullptr && group && group->size() > 1)
    throw_error<ArgumentError>(
        "Trainer: the module is not a DistributedDataParallel, so the {} ranks would train {} different "
        "models",
        group->size(), group->size());
  return group;
}

std::unique_ptr<CheckpointManager> manager_of(const TrainerOptions& options,
                                              const std::optional<ProcessGroup>& group) {
  if (options.checkpoints.empty()) return nullptr;
  CheckpointManagerOptions how;
  how.keep_last = options.keep_last;
  how.keep_best = options.keep_best;
  how.higher_is_better = options.higher_is_better;
  how.async_save = options.async_save;
  how.process_group = group;
  return std::make_unique<CheckpointManager>(options.checkpoints, std::move(how));
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

struct Trainer::Parts {
  Parts(torch::nn::Module& the_module, torch::optim::Optimizer& the_optimizer, TrainerOptions the_options)
      : options(std::move(the_options)),
        module(&the_module),
        ddp(dynamic_cast<DistributedDataParallelModule*>(&the_module)),
        optimizer(&the_optimizer),
        group(group_of(ddp)),
        device(device_of(the_module)),
        state(group),
        manager(manager_of(options, group)) {
    if (options.autocast == at::kHalf) scaler.emplace(device);
  }

  // Returns the share of one batch in the loss of its step, after backward.
  at::Tensor backward(const std::function<at::Tensor()>& loss_of, bool is_last) {
    std::optional<NoSync> on_this_rank;
    if (ddp != nullptr && !is_last) on_this_rank.emplace(ddp->no_sync());
    at::Tensor share;
    {
      std::optional<amp::Autocast> autocast;
      if (options.autocast) autocast.emplace(device, amp::AutocastOptions{.dtype = options.autocast});
      share = loss_of();
    }
    if (options.accumulation_steps > 1) share = share / options.accumulation_steps;
    (scaler ? scaler->scale(share) : share).backward();
    return share.detach();
  }

  std::optional<double> clip() {
    if (!options.max_grad_norm) return std::nullopt;
    if (scaler) scaler->unscale_(*optimizer);
    if (ddp != nullptr) return clip_grad_norm_(*ddp, *options.max_grad_norm);
    return torch::nn::utils::clip_grad_norm_(module->parameters(), *options.max_grad_norm);
  }

  void step() {
    if (scaler) {
      scaler->step(*optimizer);
      scaler->update();
    } else {
      optimizer->step();
    }
    optimizer->zero_grad();
  }

  // Over the ranks, as the loss of a report.
  Value mean_pending_loss() const {
    if (!loss.defined()) return None();
    const auto sums = metrics::sum_over_ranks({loss.item<double>(), 1}, group);
    return sums[0] / sums[1];
  }

  void load_pending_loss(const Value& mean) {
    loss = mean.is<None>() ? at::Tensor() : at::scalar_tensor(mean.as_double(), device);
  }

  double lr() const { return optimizer->param_groups().front().options().get_lr(); }

  TrainerOptions options;
  torch::nn::Module* module;
  DistributedDataParallelModule* ddp;  // nullptr for another module
  torch::optim::Optimizer* optimizer;
  std::optional<ProcessGroup> group;
  c10::Device device;
  std::optional<amp::GradScaler> scaler;
  TrainingState state;
  std::unique_ptr<CheckpointManager> manager;
  std::optional<ProgressBar> bar;
  metrics::AverageMeter reported_loss;
  std::int64_t batches = 0;  // since the last step
  at::Tensor loss;           // of these batches
  std::vector<std::function<void(const at::Tensor&)>> on_step;
  std::vector<std::function<Scalars()>> on_validate;
  std::vector<std::function<void(const Scalars&)>> on_epoch_end;
  std::vector<std::function<void(std::int64_t, const Scalars&)>> on_log;
};

Trainer::Trainer(torch::nn::Module& module, torch::optim::Optimizer& optimizer, TrainerOptions options) {
  check_options(options);
  parts_ = std::make_unique<Parts>(module, optimizer, std::move(options));
  auto& state = parts_->state;
  state.add("model", module).add("optimizer", optimizer).add("epoch", epoch_).add("step", step_);
  state.add("reported_loss", parts_->reported_loss).add_generator();
  if (parts_->scaler) state.add("scaler", *parts_->scaler);
  if (parts_->options.accumulation_steps > 1)
    state.add("batches", parts_->batches)
        .add_gradients("gradients", module)
        .add_functions(
            "pending_loss", [this] { return parts_->mean_pending_loss(); },
            [this](const Value& mean) { parts_->load_pending_loss(mean); });
}

Trainer::~Trainer() = default;

TrainingState& Trainer::state() { return parts_->state; }

Trainer& Trainer::on_step(std::function<void(const at::Tensor& loss)> callback) {
  parts_->on_step.push_back(std::move(callback));
  return *this;
}

Trainer& Trainer::on_validate(std::function<Scalars()> callback) {
  parts_->on_validate.push_back(std::move(callback));
  return *this;
}

Trainer& Trainer::on_epoch_end(std::function<void(const Scalars& validation)> callback) {
  parts_->on_epoch_end.push_back(std::move(callback));
  return *this;
}

Trainer& Trainer::on_log(std::function<void(std::int64_t step, const Scalars& scalars)> callback) {
  parts_->on_log.push_back(std::move(callback));
  return *this;
}

std::shared_ptr<void> Trainer::begin_fit() {
  auto& parts = *parts_;
  if (auto saved = parts.options.resume ? parts.manager->load_latest() : std::nullopt)
    parts.state.load_state_dict(saved->contents.as_dict());
  if (is_thread_rank()) return nullptr;
  return std::make_shared<training::StopSignals>(parts.options.stop_signals);
}

bool Trainer::begin_epoch(std::optional<std::int64_t> batches) {
  auto& parts = *parts_;
  stopped_ = stopped_ || step_ >= parts.options.max_steps.value_or(step_ + 1);
  if (stopped_ || epoch_ >= parts.options.epochs) return false;
  parts.module->train();
  if (parts.options.progress)
    parts.bar.emplace(ProgressOptions{.desc = fmt::format("epoch {}/{}", epoch_ + 1, parts.options.epochs),
                                      .total = batches,
                                      .unit = "batch"});
  return true;
}

bool Trainer::train_batch(const std::function<at::Tensor()>& loss) {
  auto& parts = *parts_;
  if (parts.bar) parts.bar->update();
  const bool is_last = ++parts.batches == parts.options.accumulation_steps;
  const auto share = parts.backward(loss, is_last);
  parts.loss = parts.loss.defined() ? parts.loss + share : share;
  if (!is_last) return true;
  optimize();
  stopped_ = stopped_ || step_ >= parts.options.max_steps.value_or(step_ + 1);
  if (stopped_ || (parts.options.checkpoint_interval != 0 && step_ % parts.options.checkpoint_interval == 0))
    save();
  if (stopped_) parts.bar.reset();
  return !stopped_;
}

void Trainer::optimize() {
  auto& parts = *parts_;
  parts.batches = 0;
  const auto loss = std::exchange(parts.loss, {});
  const auto norm = parts.clip();
  if (step_ % parts.options.agree_interval == 0) check(loss, norm);
  parts.step();
  ++step_;
  call_all(parts.on_step, loss);
  parts.reported_loss.update(loss);
  if (step_ % parts.options.log_interval != 0) return;
  Scalars scalars{{"loss", parts.reported_loss.compute(parts.group)},
                  {"lr", parts.lr()},
                  {"epoch", static_cast<double>(epoch_)}};
  if (norm) scalars["grad_norm"] = *norm;
  parts.reported_loss.reset();
  if (parts.bar) parts.bar->set_postfix(scalars);
  call_all(parts.on_log, step_, scalars);
}

void Trainer::check(const at::Tensor& loss, std::optional<double> norm) {
  auto& parts = *parts_;
  const auto number = loss.item<double>();
  const bool is_finite = parts.scaler || (std::isfinite(number) && std::isfinite(norm.value_or(0)));
  if (agree_on(is_finite ? 0 : 1) > 0)
    training::throw_non_finite(number, *parts.module, step_ + 1, parts.group);
}

double Trainer::agree_on(double number) {
  const bool stops = stop_requested_ || training::StopSignals::arrived();
  const auto sums = metrics::sum_over_ranks({number, stops ? 1.0 : 0.0}, parts_->group);
  stopped_ = sums[1] > 0;
  return sums[0];
}

double Trainer::metric_of(const Scalars& validation) const {
  const auto& name = parts_->options.metric;
  if (name.empty())
    throw ArgumentError("Trainer: ReduceLROnPlateau needs options.metric, a number of the validation");
  const auto metric = validation.find(name);
  if (metric == validation.end())
    throw_error<ArgumentError>("Trainer: the validation gives no '{}', which is options.metric", name);
  return metric->second;
}

void Trainer::end_epoch() {
  auto& parts = *parts_;
  Scalars validation;
  parts.bar.reset();
  parts.module->eval();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& validate : parts.on_validate) validation.merge(validate());
  }
  std::optional<double> metric;
  if (!parts.options.metric.empty()) metric = metric_of(validation);
  if (!validation.empty()) call_all(parts.on_log, step_, validation);
  call_all(parts.on_epoch_end, validation);
  agree_on(0);
  ++epoch_;
  const bool is_last = stopped_ || epoch_ == parts.options.epochs;
  if (is_last || epoch_ % parts.options.epochs_per_checkpoint == 0) save(metric);
}

void Trainer::save(std::optional<double> metric) {
  auto& parts = *parts_;
  if (parts.manager) parts.manager->save(step_, parts.state.state_dict(), metric);
}

}  // namespace lockstep
