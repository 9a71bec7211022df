// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/literal.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

/// Returns the mean (ReduceOp::AVG) or the sum (ReduceOp::SUM) of `value` over the ranks, on every rank. Adds
/// no gradient; `value` is unchanged. A mean of integers is float64, a sum of bool int64. Collective over
/// `process_group` (default: the default group or, without one, this process alone). Throws ArgumentError for
/// another operation.
at::Tensor reduce_value(const at::Tensor& value, ReduceOp op = ReduceOp::AVG,
                        const std::optional<ProcessGroup>& process_group = std::nullopt,
                        std::source_location where = std::source_location::current());
double reduce_value(double value, ReduceOp op = ReduceOp::AVG,
                    const std::optional<ProcessGroup>& process_group = std::nullopt,
                    std::source_location where = std::source_location::current());

/// Reduces numbers by name, all in one call. Throws DesyncError if the ranks' names differ.
std::map<std::string, double> reduce_value(const std::map<std::string, double>& values,
                                           ReduceOp op = ReduceOp::AVG,
                                           const std::optional<ProcessGroup>& process_group = std::nullopt,
                                           std::source_location where = std::source_location::current());

/// Takes the argument `average` of PyTorch's tutorials: `reduce_value(loss, true)` is the mean, `false` the sum.
template <typename T>
auto reduce_value(const T& value, std::same_as<bool> auto average,
                  const std::optional<ProcessGroup>& process_group = std::nullopt,
                  std::source_location where = std::source_location::current()) {
  return reduce_value(value, average ? ReduceOp::AVG : ReduceOp::SUM, process_group, where);
}

/// Options of EarlyStopping.
struct EarlyStoppingOptions {
  std::int64_t patience = 3;      ///< validations without improvement before training stops
  double min_delta = 0;           ///< a smaller change is no improvement
  bool higher_is_better = false;  ///< whether a larger metric is better (accuracy) or a smaller one (loss)
};

/// Decides when a metric has stopped improving. The metric must be the same on all ranks, as those of
/// lockstep::metrics are. Can be a part of a TrainingState. Keras and Lightning: `EarlyStopping`.
class EarlyStopping {
 public:
  /// Throws ArgumentError for a patience below 1 and a negative min_delta.
  explicit EarlyStopping(const EarlyStoppingOptions& options = {},
                         std::source_location where = std::source_location::current());
  /// Takes the metric of a validation and returns whether to stop. NaN is no improvement.
  bool step(double metric);
  bool stops() const { return bad_validations_ >= options_.patience; }  ///< what step() returned last
  /// The best number so far; nullopt before the first.
  std::optional<double> best() const { return best_; }
  /// Whether larger numbers are better.
  bool higher_is_better() const { return options_.higher_is_better; }
  /// The best number and the count of those since that are no better.
  Dict state_dict() const;
  /// Continues from the result of state_dict(). Throws CheckpointError.
  void load_state_dict(const Dict& state_dict);

 private:
  EarlyStoppingOptions options_;
  std::optional<double> best_;
  std::int64_t bad_validations_ = 0;
};

}  // namespace lockstep

/// Each metric accumulates the samples of this rank in update() and computes the value over all samples of
/// all ranks in compute(), which is collective over `process_group` (default as in reduce_value()). Ranks may
/// have different numbers of samples, or none. The results equal those of one process that has all samples,
/// so use data::DistributedEvalSampler, which repeats no sample.
///
/// A metric can be a part of a TrainingState. state_dict() is collective like compute() and returns the state
/// of all ranks together. load_state_dict() loads it on rank 0 and resets the other ranks. Any number of
/// ranks can therefore continue. own_state_dict() and load_own_state_dict() are for this rank alone and make no
/// calls: TrainingState::commit() uses them.
///
/// update() queues work on the device of its tensors and does not wait for it, except for Auroc. Not
/// thread-safe.
namespace lockstep::metrics {

/// Sums over samples: the common part of most metrics.
class Sums {
 public:
  /// Forgets all samples.
  void reset();
  /// The sums over all ranks. Collective; ranks may differ in their numbers of samples.
  Dict state_dict(const std::optional<ProcessGroup>& process_group = std::nullopt,
                  std::source_location where = std::source_location::current()) const;
  /// Throws CheckpointError for the state of another metric or of another number of classes.
  void load_state_dict(const Dict& state_dict,
                       const std::optional<ProcessGroup>& process_group = std::nullopt,
                       std::source_location where = std::source_location::current());
  /// The state of this rank alone. Makes no calls.
  Dict own_state_dict() const;
  /// Continues from this rank's own_state_dict(). Throws CheckpointError.
  void load_own_state_dict(const Dict& state_dict);

 protected:
  Sums(std::int64_t size, at::ScalarType dtype);
  /// Adds `part`, of `size` elements.
  void add(const at::Tensor& part);
  /// The sums of all ranks, on the CPU.
  at::Tensor total(const std::optional<ProcessGroup>& process_group,
                   std::source_location where = std::source_location::current()) const;
  /// The sums of this rank, on the CPU.
  at::Tensor local() const { return sums_.cpu(); }

 private:
  void check(const at::Tensor& saved) const;

  at::Tensor sums_;
};

/// The mean of a value that is known per batch, such as the loss. PyTorch: the AverageMeter of its examples.
class AverageMeter : public Sums {
 public:
  AverageMeter();
  /// `value` is the mean of `n` samples, of any value for n = 0. A tensor has one element. Throws
  /// ArgumentError for another tensor and a negative n.
  void update(double value, std::int64_t n = 1, std::source_location where = std::source_location::current());
  void update(const at::Tensor& value, std::int64_t n = 1,
              std::source_location where = std::source_location::current());
  double val() const;          ///< the last value of this rank; NaN before the first
  double avg() const;          ///< the mean of this rank; NaN before the first value
  std::int64_t count() const;  ///< the samples of this rank
  /// The mean over the samples of all ranks; NaN without samples.
  double compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                 std::source_location where = std::source_location::current()) const;
  /// Forgets all values.
  void reset();

 private:
  at::Tensor last_;
};

/// Samples per second since construction or reset().
class Throughput {
 public:
  /// Counts samples of this rank.
  void update(std::int64_t samples) { samples_ += samples; }
  double rate() const;  ///< of this rank
  /// The sum of the ranks' rates.
  double compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                 std::source_location where = std::source_location::current()) const;
  /// Forgets all samples and starts the clock again.
  void reset() { *this = Throughput(); }

 private:
  std::int64_t samples_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// torchmetrics' argument `num_classes` of Accuracy. Giving it does not compile.
struct NoNumClasses {
  NoNumClasses() = default;
  template <typename Number>
  NoNumClasses(const Number& /*number*/) {  // NOLINT: implicit by design
    static_assert(sizeof(Number) == 0,
                  "Accuracy takes no number of classes: write Accuracy(), or Accuracy({.top_k = 5})");
  }
};

/// Options of Accuracy.
struct AccuracyOptions {
  NoNumClasses num_classes = {};  ///< does not compile
  std::int64_t top_k = 1;         ///< the number of classes with the highest scores that may hold the target
};

/// The share of samples whose target is among the `top_k` classes with the highest scores. Of equal scores,
/// top_k = 1 takes the first class, as argmax, and a larger top_k the last ones. scikit-learn:
/// `accuracy_score`, `top_k_accuracy_score`.
class Accuracy : public Sums {
 public:
  /// Throws ArgumentError for a top_k below 1.
  explicit Accuracy(const AccuracyOptions& options = {},
                    std::source_location where = std::source_location::current());
  /// Does not compile: an integer could be the number of classes, as in torchmetrics, or top_k.
  template <std::integral Number, typename... Rest>
  explicit Accuracy(Number number, const Rest&... /*rest*/)
      : Accuracy(AccuracyOptions{.num_classes = number}) {}
  /// `scores`: [..., classes] floating point, or with top_k = 1 predicted classes [...]. `targets`: [...]
  /// int64. Throws ArgumentError for other shapes and for fewer than top_k classes.
  void update(const at::Tensor& scores, const at::Tensor& targets,
              std::source_location where = std::source_location::current());
  /// 0 to 1; NaN without samples.
  double compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                 std::source_location where = std::source_location::current()) const;

 private:
  std::int64_t top_k_;
};

/// The number of samples by target (row) and prediction (column). scikit-learn: `confusion_matrix`.
class ConfusionMatrix : public Sums {
 public:
  /// The arguments by name.
  struct Arguments {
    std::int64_t num_classes;  ///< targets are 0 .. num_classes-1
  };
  template <typename = void>
  explicit ConfusionMatrix(const Arguments& arguments,
                           std::source_location where = std::source_location::current())
      : ConfusionMatrix(arguments.num_classes, where) {}
  explicit ConfusionMatrix(std::int64_t num_classes,
                           std::source_location where = std::source_location::current());
  /// Shapes as for Accuracy, with num_classes scores per sample. Samples whose target is `ignore_index` do
  /// not count.
  void update(const at::Tensor& scores, const at::Tensor& targets,
              std::optional<std::int64_t> ignore_index = std::nullopt,
              std::source_location where = std::source_location::current());
  /// int64 [num_classes, num_classes] on the CPU. Throws ArgumentError if a target or a prediction was
  /// outside of 0 .. num_classes-1.
  at::Tensor compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                     std::source_location where = std::source_location::current()) const;

 private:
  std::int64_t num_classes_;
};

/// How the scores of the classes become one number. scikit-learn: `average`.
enum class Average : std::uint8_t {
  micro,     ///< of all samples together
  macro,     ///< mean over the classes that occur among targets or predictions
  weighted,  ///< mean weighted by the number of targets
};
/// The names of the enumerators, which Literal accepts.
OneOf<"micro", "macro", "weighted"> literals_of(Average);

/// Scores per class, float64 [num_classes]. A quotient by zero is 0. scikit-learn:
/// `precision_recall_fscore_support` with average=None and zero_division=0.
struct ClassScores {
  /// By class; `support` is the number of targets.
  at::Tensor precision;  ///< of what was predicted to be the class, the share that is
  at::Tensor recall;     ///< of what is the class, the share that was predicted to be
  at::Tensor f1;         ///< harmonic mean of precision and recall
  at::Tensor support;    ///< number of targets
};
/// Computes them from a confusion matrix, of counts or of shares. Throws ArgumentError if it is not square,
/// as the functions below.
ClassScores class_scores(const at::Tensor& confusion_matrix,
                         std::source_location where = std::source_location::current());
// Each takes a confusion matrix. scikit-learn: `precision_score`, `recall_score`, `f1_score` with
// zero_division=0.
/// The precision of a confusion matrix, averaged over the classes. scikit-learn: precision_score.
double precision(const at::Tensor& confusion_matrix, Literal<Average> average = "macro",
                 std::source_location where = std::source_location::current());
/// The recall of a confusion matrix, averaged over the classes. scikit-learn: recall_score.
double recall(const at::Tensor& confusion_matrix, Literal<Average> average = "macro",
              std::source_location where = std::source_location::current());
/// The F1 score of a confusion matrix, averaged over the classes. scikit-learn: f1_score.
double f1_score(const at::Tensor& confusion_matrix, Literal<Average> average = "macro",
                std::source_location where = std::source_location::current());
/// The mean recall of the classes that occur among the targets (class-mean accuracy). scikit-learn:
/// `balanced_accuracy_score`.
double balanced_accuracy(const at::Tensor& confusion_matrix,
                         std::source_location where = std::source_location::current());

/// The mean of the squared differences. scikit-learn: `mean_squared_error`.
class MeanSquaredError : public Sums {
 public:
  MeanSquaredError();
  /// Tensors of the same shape. Differences are computed in float64.
  void update(const at::Tensor& predictions, const at::Tensor& targets,
              std::source_location where = std::source_location::current());
  /// NaN without samples.
  double compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                 std::source_location where = std::source_location::current()) const;
};

/// exp(mean negative log-likelihood of the targets). torchmetrics: `Perplexity`.
class Perplexity : public Sums {
 public:
  /// Targets equal to `ignore_index` do not count.
  explicit Perplexity(std::int64_t ignore_index = -100);
  /// `logits`: [..., vocabulary], floating point, taken as float32 at least; `targets`: [...] int64. Throws
  /// ArgumentError for other shapes.
  void update(const at::Tensor& logits, const at::Tensor& targets,
              std::source_location where = std::source_location::current());
  /// Adds the mean negative log-likelihood of `n` targets, such as a cross-entropy loss; `n` as in
  /// AverageMeter.
  void update_loss(const at::Tensor& mean_loss, std::int64_t n,
                   std::source_location where = std::source_location::current());
  /// NaN without targets.
  double compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                 std::source_location where = std::source_location::current()) const;

 private:
  std::int64_t ignore_index_;
};

/// The area under the ROC curve, exact, with ties counted half. Keeps all scores on the CPU, and compute()
/// gathers those of all ranks. scikit-learn: `roc_auc_score`, with more than two classes one-vs-rest and
/// macro average.
class Auroc {
 public:
  /// `scores`: [n] of the positive class with targets 0 and 1, or [n, classes]. `targets`: [n] int64. Throws
  /// ArgumentError for other shapes, for NaN, and for targets that are no class.
  void update(const at::Tensor& scores, const at::Tensor& targets,
              std::source_location where = std::source_location::current());
  /// NaN if a class has no positive or no negative sample, where it is undefined.
  double compute(const std::optional<ProcessGroup>& process_group = std::nullopt,
                 std::source_location where = std::source_location::current()) const;
  /// Forgets all samples.
  void reset();
  /// The samples of all ranks. Collective.
  Dict state_dict(const std::optional<ProcessGroup>& process_group = std::nullopt,
                  std::source_location where = std::source_location::current()) const;
  /// Continues from the result of state_dict(). Throws CheckpointError.
  void load_state_dict(const Dict& state_dict,
                       const std::optional<ProcessGroup>& process_group = std::nullopt,
                       std::source_location where = std::source_location::current());
  /// The state of this rank alone. Makes no calls.
  Dict own_state_dict() const;
  /// Continues from this rank's own_state_dict(). Throws CheckpointError.
  void load_own_state_dict(const Dict& state_dict);

 private:
  Dict joined(const std::optional<ProcessGroup>& group) const;

  std::vector<at::Tensor> scores_, targets_;
};

}  // namespace lockstep::metrics
