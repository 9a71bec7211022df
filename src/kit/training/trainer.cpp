// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>
#include <tuple>

#include <ATen/ops/stack.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/base/world.h>
#include <lockstep/training/elastic.h>
#include <lockstep/training/trainer.h>

#include "base/caller_place.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "modules/broadcast.h"
#include "runtime/elastic_run.h"
#include "runtime/run.h"
#include "training/loss_guard.h"
#include "training/step_end.h"
#include "training/trainer_checks.h"

namespace lockstep {
namespace {

c10::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

// Calls code of the program, whose errors have lines of their own or none.
template <typename Callbacks, typename... Arguments>
void call_all(const Callbacks& callbacks, const Arguments&... arguments) {
  const WithoutPlace place;
  for (const auto& callback : callbacks) callback(arguments...);
}

}  // namespace

Trainer::Trainer(ModuleRef module, torch::optim::Optimizer& optimizer, const TrainerOptions& options,
                 std::source_location where)
    : Trainer(CallerPlace(where), module, optimizer, options, where) {}

Trainer::Trainer(const CallerPlace& /*place*/, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                 const TrainerOptions& options, std::source_location where)
    : options_(training::checked(options)),
      where_(where),
      epochs_(options_.epochs.value_or(options_.max_steps ? std::numeric_limits<std::int64_t>::max() : 1)),
      module_(module),
      ddp_(dynamic_cast<DistributedDataParallelModule*>(&module)),
      sharded_(FSDPModule::find(module)),
      optimizer_(optimizer),
      first_parameters_(training::weak(training::optimizable_parameters(module_, sharded_))),
      group_(training::trainer_group(ddp_, sharded_.has_value())),
      device_(device_of(module)),
      state_(group_) {
  const comm::CallSite site(where_);
  open_checkpoints();
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
  state_.add("batches", pending_).add("accumulation_steps", accumulation_steps_);
  if (options_.accumulation_steps > 1 && !sharded_) state_.add_gradients("gradients", module_);
  guard_ = training::LossGuard::make(options_, {.module = module_,
                                                .optimizer = optimizer_,
                                                .sharded = sharded_ ? &*sharded_ : nullptr,
                                                .state = state_,
                                                .reported_loss = reported_loss_,
                                                .group = group_});
  if (guard_) state_.add("loss_guard", *guard_);
  if (options_.verify_interval != 0 && group_)
    state_.add("verifier",
               verifier_.emplace(module_, training::verifier_options(options_, optimizer_), where_));
}

Trainer::~Trainer() = default;

void Trainer::open_checkpoints() {
  if (options_.checkpoints.empty()) return;
  manager_.emplace(options_.checkpoints, training::manager_options(options_, group_, sharded_.has_value()));
}

Trainer& Trainer::stop_early(EarlyStopping& stopping, const std::string& name) {
  state_.add(name, stopping);
  stopping_ = &stopping;
  return on_metric("EarlyStopping", stopping.higher_is_better(),
                   [&stopping](double metric) { stopping.step(metric); });
}

Trainer& Trainer::replace_step(std::function<void()> step) {
  if (scaler_) throw ArgumentError("Trainer: replace_step() does not work with autocast in float16");
  step_function_ = std::move(step);
  return *this;
}

Trainer& Trainer::on_metric(const char* part, bool higher_is_better, std::function<void(double)> callback) {
  if (options_.metric.empty())
    throw_error<ArgumentError>("Trainer: {} needs options.metric, a number of the validation", part);
  if (higher_is_better != options_.higher_is_better)
    throw_error<ArgumentError>(
        "Trainer: for {} a {} {} is better, but options.higher_is_better is {}; set both alike", part,
        higher_is_better ? "higher" : "lower", options_.metric, options_.higher_is_better);
  return on_epoch_end(
      [this, callback = std::move(callback)](const Scalars& validation) { callback(metric_of(validation)); });
}

std::shared_ptr<void> Trainer::begin_fit() {
  const CallerPlace place(where_);
  stopped_ = interrupted_ = false;
  accumulation_steps_ = options_.accumulation_steps;
  if (!step_function_)
    training::check_optimizer(training::optimizable_parameters(module_, sharded_), first_parameters_,
                              optimizer_);
  if (runtime::is_replacement()) {
    // The commits of the run have what the other ranks have loaded.
  } else if (options_.resume) {
    resume();
  } else if (manager_ && step_ == 0) {
    const comm::CallSite site(where_);
    training::check_no_checkpoints(*manager_, group_);
  }
  if (is_thread_rank()) return nullptr;
  const auto signals = std::make_shared<StopSignals>(options_.stop_signals);
  signals_ = signals;
  return signals;
}

void Trainer::train_epochs(const std::function<void()>& loop) {
  if (!options_.elastic) return loop();
  is_in_elastic_run_ = true;
  const auto end = c10::make_scope_exit([&] { is_in_elastic_run_ = false; });
  const auto from_commit = [&](const Context&) {
    return_to_commit();
    loop();
  };
  elastic::run(state_, from_commit, where_);
}

void Trainer::return_to_commit() {
  const CallerPlace place(where_);
  bar_.reset();
  losses_.clear();
  loss_ = at::Tensor();
  if (std::exchange(stopped_, false)) stop_requested_ = true;  // the ranks agree on it again
  interrupted_ = false;
  if (guard_) guard_->forget_step();
  const comm::CallSite site(where_);
  open_checkpoints();  // the saves of the old one have ended at different points on each rank
}

void Trainer::commit_step() const {
  if (options_.elastic && pending_ == 0) state_.commit(where_);
}

void Trainer::resume() {
  const comm::CallSite site(where_);
  if (!sharded_) {
    if (const auto saved = manager_->load_latest()) load(saved->contents.as_dict());
    return;
  }
  auto contents = training::without_window(state_.state_dict());
  if (manager_->load_latest(contents)) load(contents);
}

void Trainer::load(const Dict& contents) {
  const auto pending = contents.at("batches").as_int();
  const auto steps = contents.at("accumulation_steps").as_int();
  if (pending != 0 && steps != options_.accumulation_steps) {
    throw_error<ArgumentError>(
        "Trainer: the checkpoint has the gradients of {} of {} batches of a step, but accumulation_steps is "
        "{}; resume with {}, or from a checkpoint after a step",
        pending, steps, options_.accumulation_steps, steps);
  }
  auto complete = contents;
  // A run without accumulation saves no gradients.
  if (options_.accumulation_steps > 1 && !sharded_ && contents.find("gradients") == nullptr)
    complete.set("gradients", state_.state_dict().at("gradients"));
  if (guard_ && contents.find("loss_guard") == nullptr)
    complete.set("loss_guard", guard_->state_dict(group_));
  if (verifier_ && contents.find("verifier") == nullptr) complete.set("verifier", verifier_->state_dict());
  state_.load_state_dict(complete);
  accumulation_steps_ = options_.accumulation_steps;
}

bool Trainer::begin_epoch(std::optional<std::int64_t> batches) {
  if (options_.elastic && !is_in_elastic_run_) {
    throw ArgumentError(
        "Trainer: options.elastic is for fit(); a loop of begin_epoch() and train_batch() calls elastic::run() and "
        "state().commit() itself");
  }
  stopped_ = stopped_ || is_over();
  if (stopped_ || epoch_ >= epochs_) return false;
  module_.train();
  if (guard_ && batch_ == 0) guard_->limit_rewinds();
  batches_ = batches;
  if (options_.progress)
    bar_.emplace(ProgressOptions{.desc = options_.epochs ? fmt::format("epoch {}/{}", epoch_ + 1, epochs_)
                                                         : fmt::format("epoch {}", epoch_ + 1),
                                 .total = batches,
                                 .unit = "batch",
                                 .initial = batch_});
  return true;
}

bool Trainer::train_batch(const std::function<at::Tensor()>& loss_of) {
  if (verifier_) throw ArgumentError("Trainer: with verify_interval call train_batch(batch, loss_of)");
  return train_by([&](const Backward& backward) { return backward(loss_of); });
}

bool Trainer::train_by(const std::function<at::Tensor(const Backward&)>& run) {
  if (guard_ && (pending_ == 0 || guard_->has_no_begin())) guard_->begin_step(step_, pending_ == 0);
  ++batch_;
  if (bar_) bar_->update();
  const bool ends_step = ++pending_ == options_.accumulation_steps;
  losses_.push_back(
      run([&](const std::function<at::Tensor()>& loss_of) { return backward(loss_of, ends_step); }));
  reported_loss_.update(losses_.back());
  if (!ends_step) return true;
  const bool has_step = optimize();
  stopped_ = stopped_ || is_over();
  const bool ends_epoch = batch_ == batches_ && !interrupted_;  // then end_epoch() follows
  const bool leaves = stopped_ && !ends_epoch;
  const bool is_due = step_ % options_.log_interval == 0;
  if (has_step ? is_due || leaves : leaves && !is_due) report();
  const bool at_interval =
      has_step && options_.checkpoint_interval != 0 && step_ % options_.checkpoint_interval == 0;
  if (leaves || (at_interval && !(ends_epoch && (stopped_ || saves_epoch(epoch_ + 1))))) save();
  if (leaves) bar_.reset();
  if (!ends_epoch)
    commit_step();  // else end_epoch() does, so that the epoch has its validation when it is complete
  return !leaves;
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

bool Trainer::optimize() {
  pending_ = 0;
  const auto last = std::pair(loss_, grad_norm_);
  loss_ = at::stack(std::exchange(losses_, {})).mean();
  clip();
  if (guard_ && !guard_->accepts(step_ + 1, agree(step_ + 1), loss_.item<double>(), where_)) {
    std::tie(loss_, grad_norm_) = last;
    return false;
  }
  if (!guard_ && step_ % options_.agree_interval == 0) agree(step_ + 1);
  lr_ = optimizer_.param_groups().front().options().get_lr();
  if (scaler_) {
    scaler_->step(optimizer_, where_);
    scaler_->update();
  } else if (step_function_) {
    step_function_();
  } else {
    optimizer_.step();
  }
  optimizer_.zero_grad();
  ++step_;
  call_all(on_step_, loss_);
  return true;
}

void Trainer::clip() {
  if (!options_.max_grad_norm && !guard_) return;
  if (scaler_) scaler_->unscale_(optimizer_, where_);
  const comm::CallSite site(where_, "norm of the gradients");
  const auto most = options_.max_grad_norm.value_or(std::numeric_limits<double>::infinity());
  try {  // a scaler leaves out the step itself
    grad_norm_ = training::clip_gradients(module_, ddp_, sharded_, most, {.error_if_nonfinite = !scaler_});
  } catch (const NonFiniteError&) {  // on all ranks
    grad_norm_ = std::numeric_limits<double>::quiet_NaN();
    if (!guard_) training::throw_non_finite(loss_.item<double>(), module_, step_ + 1, group_);
  }
}

double Trainer::agree(std::int64_t step) {
  const comm::CallSite site(where_);
  const auto loss = loss_.defined() ? loss_.item<double>() : 0;
  const bool is_finite =
      scaler_ || (std::isfinite(loss) && std::isfinite(guard_ ? grad_norm_.value_or(0) : 0));
  const auto signals = signals_.lock();
  const bool arrived = signals && signals->arrived();
  const auto all = training::agree(
      {.loss = loss, .is_finite = is_finite, .stops = stop_requested_ || arrived, .is_interrupted = arrived},
      group_);
  if (!all.is_finite && !guard_) training::throw_non_finite(loss, module_, step, group_);
  stopped_ = all.stops;
  interrupted_ = all.is_interrupted;
  if (stopped_) stop_requested_ = false;
  if (interrupted_ && signals) signals->stop();
  return all.loss;
}

void Trainer::report() {
  Scalars scalars{
      {"loss", reported_loss_.compute(group_, where_)}, {"lr", lr_}, {"epoch", static_cast<double>(epoch_)}};
  if (grad_norm_) scalars["grad_norm"] = *grad_norm_;
  if (step_ % options_.log_interval == 0) reported_loss_.reset();
  for (const auto& [name, value] : scalars) report_number(name, value);
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

Scalars Trainer::validate() {
  module_.eval();
  Scalars validation;
  {
    const torch::NoGradGuard no_grad;
    if (ddp_ != nullptr) ddp_->sync_buffers();
    if (sharded_ && group_)
      modules::broadcast_from(*group_, 0, modules::distinct(module_.named_buffers()), where_);
    const WithoutPlace code_of_the_program;
    for (const auto& callback : on_validate_) validation.merge(callback());
  }
  const comm::CallSite site(where_, "comparison of validations");
  training::check_equal_numbers(validation, group_);
  return validation;
}

void Trainer::end_epoch() {
  const CallerPlace place(where_);
  // Without a step since a resume, the stop before has reported it.
  const bool is_reported = step_ % options_.log_interval == 0 || !loss_.defined();
  const bool is_last = stopped_ || epoch_ + 1 == epochs_;
  if (is_last && !is_reported) report();
  bar_.reset();
  const auto validation = validate();
  std::optional<double> metric;
  if (!options_.metric.empty()) metric = metric_of(validation);
  if (!validation.empty()) call_all(on_log_, step_, validation);
  call_all(on_epoch_end_, validation);
  if (!stopped_) agree(step_);
  stopped_ = stopped_ || is_over();
  if (stopped_ && !is_last && !is_reported) report();
  ++epoch_;
  batch_ = 0;
  if (stopped_ || saves_epoch(epoch_)) save(metric);
  commit_step();
}

bool Trainer::saves_epoch(std::int64_t epoch) const {
  return epoch == epochs_ || epoch % options_.epochs_per_checkpoint == 0;
}

void Trainer::save(std::optional<double> metric) {
  if (!manager_) return;
  if (sharded_ && pending_ != 0) {
    throw_error<ArgumentError>(
        "Trainer: a checkpoint after {} of {} batches of a step would need gradients of whole parameters, "
        "which fully_shard() does not save; let accumulation_steps divide the batches of an epoch",
        pending_, options_.accumulation_steps);
  }
  const CallerPlace place(where_);
  {
    const comm::CallSite site(where_);
    training::check_parameters_finite(module_, step_, group_);
  }
  const auto contents = state_.state_dict(where_);
  manager_->save(step_, sharded_ ? training::without_window(contents) : contents, metric, where_);
  if (guard_) guard_->limit_rewinds();
  if (ends()) manager_->wait(where_);
}

}  // namespace lockstep
