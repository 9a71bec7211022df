// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/amp/grad_scaler.h>
#include <lockstep/base/literal.h>
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/step_verifier.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/device/pytree.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/metrics/metrics.h>
#include <lockstep/training/logging.h>
#include <lockstep/training/progress.h>
#include <lockstep/training/stop_signals.h>

namespace lockstep {

class CallerPlace;
namespace training {
class LossGuard;
}

/// Throws NonFiniteError on all ranks if the loss of any rank is infinite or NaN. The message names the step,
/// the ranks with their losses, and the first parameter of `module` whose gradient is not finite. Call it
/// after backward and before the optimizer's step, which would spoil the parameters. Collective over
/// `process_group` (default: the default group or, without one, this process alone); waits for the device.
/// With float16 use amp::GradScaler instead, which skips such steps.
void finite_or_stop(const at::Tensor& loss, ConstModuleRef module, std::int64_t step,
                    const std::optional<ProcessGroup>& process_group = std::nullopt,
                    std::source_location where = std::source_location::current());

/// The action after a bad step. A step is bad if its loss or a gradient is infinite or NaN on a rank, or if its loss is a
/// spike, see TrainerOptions::spike_factor.
enum class OnBadLoss : std::uint8_t {
  error,   ///< an exception on all ranks
  skip,    ///< the step is undone, and training continues with the next batch
  rewind,  ///< earlier steps are undone too
};
/// The names of the enumerators, which Literal accepts.
OneOf<"error", "skip", "rewind"> literals_of(OnBadLoss);

/// Options of Trainer.
struct TrainerOptions {
  /// Epochs of the whole run, those before a resume included. Default: 1, or with max_steps any number.
  std::optional<std::int64_t> epochs = {};
  /// The step after which training ends, also within an epoch.
  std::optional<std::int64_t> max_steps = {};
  /// Batches per step of the optimizer; their losses are averaged and their gradients are reduced once. A step's
  /// batches may span an epoch boundary; batches after the last step of the run are not used. A resume between two steps
  /// needs the number of the run before.
  std::int64_t accumulation_steps = 1;
  /// Clips the norm of all gradients.
  std::optional<double> max_grad_norm = {};
  /// The dtype of autocast for the loss function. float16 also scales the loss, see amp::GradScaler.
  std::optional<at::ScalarType> autocast = {};

  /// The action of all ranks after a bad step, before the optimizer's step. "error" throws NonFiniteError, and Error
  /// for a spike. "skip" drops the batches of the step: parameters, buffers, optimizer, schedulers, step() and random
  /// generators are as they were before its first forward. "rewind" lets the run go back further, see rewind_steps. The
  /// main rank logs each bad step. on_step() is not called for it. Not with autocast in float16, where the scaler
  /// skips steps; "rewind" not for a module of fully_shard().
  Literal<OnBadLoss> on_bad_loss = "error";
  /// A step is a spike if its loss, the mean of all ranks, is more than this factor times the median of the last
  /// spike_window good steps. There is none before that many steps, and none at a median of 0 or less. 0: no step is a
  /// spike; else more than 1.
  double spike_factor = 0;
  std::int64_t spike_window = 100;  ///< steps, see spike_factor
  /// As many bad steps in a row are undone; the next one is an error, as with on_bad_loss = "error".
  std::int64_t max_bad_steps = 5;
  /// For "rewind": the parts of state() go back by this number of steps, or up to twice as many less one, as each
  /// rewind_steps steps a copy of them is made in memory, of which the last two are kept. The batches since are not
  /// repeated: loaders, epoch() and batch() stay. The last checkpoint and the beginning of the epoch limit how far it
  /// goes back. Callbacks are called again for the steps that are repeated.
  std::int64_t rewind_steps = 10;

  /// The folder of the checkpoints; empty: none. See CheckpointManager.
  std::filesystem::path checkpoints = {};
  std::int64_t keep_last = 3;    ///< as in CheckpointManagerOptions
  std::int64_t keep_best = 1;    ///< as in CheckpointManagerOptions
  bool higher_is_better = true;  ///< as in CheckpointManagerOptions
  bool async_save = false;       ///< as in CheckpointManagerOptions
  /// Steps between checkpoints in an epoch; 0: none. The last step of an epoch has that of the epoch only.
  std::int64_t checkpoint_interval = 0;
  /// Epochs between checkpoints after an epoch. The last epoch of the run always has one.
  std::int64_t epochs_per_checkpoint = 1;
  /// The validation's number that determines the best checkpoint and that ReduceLROnPlateau takes.
  std::string metric = {};
  /// Continue from the newest checkpoint, if there is one. Without it a folder that has checkpoints is an
  /// ArgumentError of fit().
  bool resume = false;

  /// fit() trains within elastic::run() and commits each step. With `lockstep run --on-loss replace` a lost rank
  /// is replaced, and all ranks continue from the last step that all have committed, with the results of an
  /// undisturbed run. With `--on-loss shrink` the other ranks continue from there without it. The parts that were added
  /// to state() return to that step too. Callbacks are called again for the steps that are repeated. Only one fit() of a
  /// run can be elastic. Loops of begin_epoch() and train_batch() throw ArgumentError; they call elastic::run() and
  /// state().commit() themselves.
  bool elastic = false;

  /// Steps between two that a StepVerifier verifies; 0: none. A rank that computes wrongly is then a VerificationError
  /// of fit(), or with `elastic` replaced. The type of the batches must be a PyTree. `loss_of` is also called for
  /// batches of other ranks, see is_replaying(); there it must make no calls on a group.
  std::int64_t verify_interval = 0;
  bool verify_all_ranks = false;  ///< StepVerifierOptions::all_ranks

  /// A progress bar for each epoch on the main rank, with the numbers of the last report.
  bool progress = false;
  /// Steps between two reports to on_log().
  std::int64_t log_interval = 50;
  /// Steps between two agreements of the ranks, one small all-reduce that waits for the device: whether all
  /// losses are finite (except with float16) and whether a rank wants to stop. The end of an epoch is one
  /// too, and each step with on_bad_loss or spike_factor. Before each checkpoint the parameters must be finite.
  std::int64_t agree_interval = 1;
  /// While fit() runs, these signals make all ranks save a checkpoint after a step and leave fit();
  /// interrupted() is then true, and the program ends with kExitInterrupted. A second signal of the same kind, or one
  /// that arrives too late, has its original effect, see StopSignals. Not in threads of spawn_threads().
  std::vector<int> stop_signals = {SIGTERM, SIGUSR1};
};

/// The training loop of one model: batches, accumulation, autocast, clipping, schedules, validation, logs,
/// checkpoints and resume, stopping on signals. Every rank creates it and calls fit() with the same options.
///
///     lockstep::Trainer trainer(ddp, optimizer, {.epochs = 3, .checkpoints = "run", .resume = true});
///     trainer.on_validate([&] { return lockstep::Scalars{{"accuracy", accuracy_of(test_set)}}; });
///     trainer.fit(loader, [&](auto& batch) {
///       return torch::nn::functional::cross_entropy(ddp->forward(batch.data), batch.target);
///     });
///
/// fit() is a short loop over the public functions begin_fit(), begin_epoch(), train_batch() and end_epoch();
/// a program that needs another loop calls these itself. It adds its loader to state(), or skips the first
/// batch() batches of an epoch. All ranks have as many batches. The module and the optimizer must outlive the
/// trainer. Not thread-safe.
class Trainer {
 public:
  /// `module`: a DistributedDataParallel, a module of fully_shard(), or any module in a run of one rank.
  /// Throws ArgumentError for another module in a run of several ranks, and for invalid options. Checkpoints
  /// of a module of fully_shard() are folders that all ranks write; they continue on as many ranks.
  Trainer(ModuleRef module, torch::optim::Optimizer& optimizer, const TrainerOptions& options = {},
          std::source_location where = std::source_location::current());
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// The parts of each checkpoint: model, optimizer, generator, epoch, step, batch, with float16 the scaler,
  /// the loader of fit() and the schedulers. Add others before fit().
  TrainingState& state() { return state_; }

  /// Calls scheduler.step() after each step, or after each epoch's validation, a ReduceLROnPlateau with the
  /// number options.metric of the validation. The scheduler must outlive the trainer. Throws ArgumentError
  /// for a ReduceLROnPlateau whose mode contradicts options.higher_is_better.
  template <typename Scheduler>
  Trainer& step_scheduler(Scheduler& scheduler, const std::string& name = "scheduler") {
    state_.add(name, scheduler);
    return on_step([this, &scheduler](const at::Tensor&) { advance(scheduler); });
  }
  /// Calls scheduler.step() after the validation of each epoch, a ReduceLROnPlateau with the number
  /// options.metric. The scheduler must outlive the trainer.
  template <typename Scheduler>
  Trainer& epoch_scheduler(Scheduler& scheduler, const std::string& name = "scheduler") {
    state_.add(name, scheduler);
    if constexpr (requires { scheduler.step(); })
      return on_epoch_end([this, &scheduler](const Scalars&) { advance(scheduler); });
    else
      return on_metric("ReduceLROnPlateau", scheduler.mode() == decltype(scheduler.mode())::max,
                       [this, &scheduler](double metric) {
                         if constexpr (requires { scheduler.step(metric, where_); })
                           scheduler.step(metric, where_);
                         else
                           scheduler.step(metric);
                       });
  }
  /// Calls stopping.step() with the number options.metric after each validation, and stops when it returns
  /// true. A run that had stopped so does not train any further after a resume. Throws ArgumentError for
  /// a higher_is_better that is not the options'.
  Trainer& stop_early(EarlyStopping& stopping, const std::string& name = "early_stopping");

  /// Replaces the call of optimizer.step(), after clipping, e.g. to change gradients before it or to step a
  /// second optimizer. Throws ArgumentError with float16, where the scaler steps the optimizer.
  Trainer& replace_step(std::function<void()> step);

  // Callbacks; each of a kind is called in the order in which they were added.
  /// After each step of the optimizer, with the detached loss of this rank: the mean of its batches, after a
  /// resume of those since then.
  Trainer& on_step(std::function<void(const at::Tensor& loss)> callback) {
    return add(on_step_, std::move(callback));
  }
  /// After each epoch, with the module in evaluation mode, without gradients, and with the buffers of rank 0
  /// on all ranks, except with broadcast_buffers = false of DistributedDataParallel. Numbers that differ
  /// between ranks are a DesyncError on all of them.
  Trainer& on_validate(std::function<Scalars()> callback) { return add(on_validate_, std::move(callback)); }
  /// After the validation of each epoch, with its numbers.
  Trainer& on_epoch_end(std::function<void(const Scalars& validation)> callback) {
    return add(on_epoch_end_, std::move(callback));
  }
  /// Every log_interval steps and after the last one: "loss", the mean of the steps since the last report
  /// over all ranks, "lr" of the first group in the step, "grad_norm" before clipping, "epoch". After each
  /// validation: its numbers. On all ranks.
  Trainer& on_log(std::function<void(std::int64_t step, const Scalars& scalars)> callback) {
    return add(on_log_, std::move(callback));
  }
  Trainer& on_log(const Logger& logger) {
    return on_log([logger](std::int64_t step, const Scalars& scalars) { logger.log(step, scalars); });
  }

  /// Trains until options.epochs or max_steps, or until all ranks have agreed to stop. `loss_of(batch)`
  /// returns the loss of one batch, a tensor of one element. With `resume`, continues in the middle of an
  /// epoch, with the same results as without the interruption. A loader without position() must have the same
  /// batches in each epoch, since those that were trained are skipped. Checkpoints are complete when it
  /// returns. Throws the errors of its parts, and NonFiniteError.
  template <typename Loader, typename LossOf>
  void fit(Loader& loader, LossOf&& loss_of, std::source_location where = std::source_location::current()) {
    where_ = where;
    constexpr bool seeks = requires { loader.position(); };
    if constexpr (seeks)
      if (std::exchange(loader_, &loader) != &loader) state_.add("loader", loader);
    const auto signals = begin_fit();
    train_epochs([&] {
      while (begin_epoch(batches_of(loader))) {
        if constexpr (requires { loader.set_epoch(epoch()); }) loader.set_epoch(epoch());
        for (std::int64_t trained = seeks ? 0 : batch_; auto&& batch : loader) {
          if (trained-- > 0) continue;
          if (!train_batch(batch, loss_of)) return;
        }
        end_epoch();
      }
    });
  }

  /// Restores the newest checkpoint with `resume`, and handles the stop signals while the result exists.
  [[nodiscard]] std::shared_ptr<void> begin_fit();
  /// Whether there is an epoch to train; sets the module to training mode. `batches`: of the epoch, for the
  /// progress bar, and so that a run that ends with the epoch validates it.
  bool begin_epoch(std::optional<std::int64_t> batches = std::nullopt);
  /// Forward and backward of one batch, and after accumulation_steps of them one step. Returns false if the
  /// loop must be left without end_epoch().
  bool train_batch(const std::function<at::Tensor()>& loss_of);
  /// Takes the loss of `batch` from `loss_of(batch)`, which options.verify_interval calls for other batches too.
  template <typename Batch, typename LossOf>
  bool train_batch(Batch& batch, LossOf&& loss_of) {
    using Own = std::remove_const_t<Batch>;
    if (!verifier_) return train_batch([&] { return loss_of(batch); });
    return train_by([&](const Backward& backward) -> at::Tensor {
      if constexpr (PyTree<Own> && std::copy_constructible<Own>) {
        at::Tensor own;
        const auto pass = [&](Batch& each) {
          const auto loss = backward([&] { return loss_of(each); });
          if (!own.defined()) own = loss;
        };
        verifier_->run(batch, pass, where_);
        return own;
      } else {
        refuse_batch();
      }
    });
  }
  /// Validates, saves a checkpoint and counts the epoch.
  void end_epoch();

  /// All ranks stop after the next agreement, as with a signal: after a step, or at the end of an epoch. Any
  /// rank may call it.
  void stop() { stop_requested_ = true; }
  /// Whether training ends before its last epoch: after a signal, stop() or early stopping.
  bool stopped() const { return stopped_; }
  /// Within `loss_of`, with verify_interval: whether the batch is that of another rank, which must not be counted.
  bool is_replaying() const { return verifier_ && verifier_->is_replaying(); }
  bool interrupted() const { return interrupted_; }  ///< stopped by a signal, on any rank
  /// The current epoch, from 0.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t step() const { return step_; }    ///< steps of the optimizer so far
  std::int64_t batch() const { return batch_; }  ///< batches of the epoch so far

 private:
  // For a type that StepVerifier does not take: throws ArgumentError.
  [[noreturn]] static void refuse_batch();
  Trainer(const CallerPlace& place, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
          const TrainerOptions& options, std::source_location where);

  template <typename Callback>
  Trainer& add(std::vector<Callback>& callbacks, Callback callback) {
    callbacks.push_back(std::move(callback));
    return *this;
  }

  template <typename Scheduler>
  void advance(Scheduler& scheduler) const {
    if constexpr (requires { scheduler.step(where_); }) {
      scheduler.step(where_);
    } else {
      scheduler.step();
    }
  }

  // How many the pass has that begins or continues, where known.
  template <typename Loader>
  static std::optional<std::int64_t> batches_of(Loader& loader) {
    if constexpr (requires { loader.continues_pass_of_other_ranks(); })
      if (loader.continues_pass_of_other_ranks()) return std::nullopt;
    return training::size_of(loader);
  }

  // Runs the backward of a loss, and returns the loss.
  using Backward = std::function<at::Tensor(const std::function<at::Tensor()>& loss_of)>;
  // train_batch() where `run` calls the function that it gets, and returns the loss of this rank.
  bool train_by(const std::function<at::Tensor(const Backward&)>& run);
  // Calls `loop`; with options.elastic within elastic::run(), again after each loss of a rank.
  void train_epochs(const std::function<void()>& loop);
  // Drops what is of the steps after the last commit, or differs between a replacement and the others.
  void return_to_commit();
  void commit_step() const;
  void open_checkpoints();
  bool is_over() const;
  bool saves_epoch(std::int64_t epoch) const;
  bool ends() const { return stopped_ || epoch_ == epochs_; }
  Trainer& on_metric(const char* part, bool higher_is_better, std::function<void(double)> callback);
  double metric_of(const Scalars& validation) const;
  at::Tensor backward(const std::function<at::Tensor()>& loss_of, bool ends_step);
  // False: the step is undone.
  bool optimize();
  void clip();
  // The mean of the ranks' last losses; NaN if one is not finite, which is an error without a guard.
  double agree(std::int64_t step);
  void resume();
  void load(const Dict& contents);
  void report();
  // The numbers of on_validate(), equal on all ranks.
  Scalars validate();
  void save(std::optional<double> metric = std::nullopt);

  TrainerOptions options_;
  std::source_location where_;  // of the constructor or of fit(): the calls of the trainer itself have it
  std::int64_t epochs_;
  torch::nn::Module& module_;
  DistributedDataParallelModule* ddp_;  // nullptr for another module
  std::optional<FSDPModule> sharded_;
  torch::optim::Optimizer& optimizer_;
  // The module's, when the trainer was constructed.
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> first_parameters_;
  std::optional<ProcessGroup> group_;
  c10::Device device_;
  std::optional<amp::GradScaler> scaler_;
  TrainingState state_;
  std::unique_ptr<training::LossGuard> guard_;  // nullptr: bad losses are errors, found by agree()
  std::optional<CheckpointManager> manager_;
  std::optional<StepVerifier> verifier_;
  std::optional<ProgressBar> bar_;
  std::function<void()> step_function_;
  std::vector<std::function<void(const at::Tensor&)>> on_step_;
  std::vector<std::function<Scalars()>> on_validate_;
  std::vector<std::function<void(const Scalars&)>> on_epoch_end_;
  std::vector<std::function<void(std::int64_t, const Scalars&)>> on_log_;
  std::weak_ptr<StopSignals> signals_;  // of begin_fit()
  const void* loader_ = nullptr;
  const EarlyStopping* stopping_ = nullptr;
  std::optional<std::int64_t> batches_;  // of an epoch, where known
  std::int64_t epoch_ = 0, step_ = 0, batch_ = 0;
  std::int64_t pending_ = 0;             // batches since the last step
  std::int64_t accumulation_steps_ = 1;  // in checkpoints
  std::vector<at::Tensor> losses_;       // of those since the resume
  at::Tensor loss_;                      // of the last step
  std::optional<double> grad_norm_;      // of the last step
  double lr_ = 0;                        // of the last step
  metrics::AverageMeter reported_loss_;
  bool is_in_elastic_run_ = false;
  bool stop_requested_ = false;
  bool stopped_ = false;
  bool interrupted_ = false;
};

}  // namespace lockstep
