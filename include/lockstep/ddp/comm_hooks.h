// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// The result of a communication hook: a pending reduction, as a chain of calls and of steps between them.
/// PyTorch: the `Future[Tensor]` of a hook.
///
/// Nothing runs in the background: advance() waits for the pending call and runs the step after it. The
/// reducer advances all buckets round-robin in their order, so that all ranks issue later calls in the same
/// order. Copies refer to the same chain: each step runs once, and all have its result. One thread at a time.
class BucketWork {
 public:
  /// The step after a call.
  using Step = std::function<BucketWork()>;
  /// A change of the result.
  using Change = std::function<at::Tensor(at::Tensor)>;
  /// The step after a call, which takes its result.
  using Next = std::function<BucketWork(at::Tensor)>;

  /// Done, without a result.
  BucketWork() = default;
  /// Done, with the result `reduced`.
  explicit BucketWork(at::Tensor reduced)
      : chain_(std::make_shared<Chain>(Chain{.result = std::move(reduced)})) {}
  /// `reduced` is the result when `work` is complete.
  BucketWork(Work work, at::Tensor reduced)
      : BucketWork(std::move(work), [reduced = std::move(reduced)] { return BucketWork(reduced); }) {}
  /// Calls `next` when `work` is complete; its BucketWork replaces this one.
  BucketWork(Work work, Step next)
      : chain_(std::make_shared<Chain>(Chain{.work = std::move(work), .next = std::move(next)})) {}

  /// This chain with `change` applied to its result, in the wait() or advance() that ends it. PyTorch:
  /// `Future.then`.
  BucketWork then(Change change) const;
  /// This chain followed by the BucketWork that `next` returns for the result.
  BucketWork then(Next next) const;

  /// Whether the chain has ended: wait() returns at once.
  bool is_completed() const { return !pending(); }
  /// Whether advance() would not block.
  bool is_ready() const { return is_completed() || pending()->work.is_completed(); }
  /// Waits for the pending call and runs the next step. Throws the errors of Work::wait() and the step.
  void advance();
  /// Advances to the end and returns the result.
  at::Tensor wait();
  /// As wait(), with `timeout` as the limit of all its calls together.
  at::Tensor wait(Timeout timeout);

 private:
  struct Chain {
    Work work = {};
    Step next = {};
    at::Tensor result = {};
    std::shared_ptr<Chain> rest = {};  // what the step returned
  };
  // The last part of the chain so far; none: done without a result.
  Chain* last() const;
  // The part to advance; none: done.
  Chain* pending() const;
  // The step after the call of `part`, which has ended.
  static void run_step(Chain& part);
  at::Tensor result() const;

  std::shared_ptr<Chain> chain_;
};

/// Gradients that are reduced together, as passed to a communication hook. PyTorch:
/// `torch.distributed.GradBucket`.
class GradBucket {
 public:
  /// A parameter whose gradient is in the bucket.
  struct Parameter {
    std::string name;         ///< in the wrapped module
    at::Tensor tensor;        ///< the parameter itself
    std::int64_t offset = 0;  ///< of its gradient in the buffer, in elements
  };

  GradBucket(std::size_t index, bool is_last, at::Tensor buffer, std::vector<Parameter> parameters,
             const ProcessGroup& group)
      : index_(index),
        is_last_(is_last),
        buffer_(std::move(buffer)),
        parameters_(std::move(parameters)),
        group_(group) {}

  /// 0 for the bucket that is reduced first.
  std::size_t index() const { return index_; }
  /// Whether it is the last bucket of this backward.
  bool is_last() const { return is_last_; }
  /// The gradients as one flat tensor [sum of the parameters' elements], not divided by the number of ranks.
  /// The gradient itself for a parameter with sparse gradients, which has a bucket of its own.
  const at::Tensor& buffer() const { return buffer_; }
  /// Replaces the bucket's gradients, flat; the shape stays.
  void set_buffer(at::Tensor buffer) { buffer_ = std::move(buffer); }
  /// Views of the buffer in the parameters' shapes.
  std::vector<at::Tensor> gradients() const;
  /// The parameters of the bucket, in the order of their gradients in it.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// The group of the DistributedDataParallel.
  const ProcessGroup& process_group() const { return group_; }

 private:
  std::size_t index_;
  bool is_last_;
  at::Tensor buffer_;
  std::vector<Parameter> parameters_;
  ProcessGroup group_;
};

/// Replaces the averaging of a bucket. Backward calls it for the buckets in order, when all gradients of the
/// bucket are ready. It starts the communication and divides by the number of ranks. The gradients become its
/// result, which has the bucket's number of elements and any floating dtype. The callable owns its state. All
/// ranks must make the same calls. PyTorch: `register_comm_hook(state, hook)`.
using CommHook = std::function<BucketWork(GradBucket&)>;

class PowerSGD;

namespace ddp::detail {
// Whether copies of a state refer to the same one.
template <typename State>
inline constexpr bool kRefers = std::is_pointer_v<State>;
template <typename State>
inline constexpr bool kRefers<std::shared_ptr<State>> = true;
template <typename State>
inline constexpr bool kRefers<std::reference_wrapper<State>> = true;
template <>
inline constexpr bool kRefers<PowerSGD> = true;
template <typename State>
inline constexpr bool kIsShared = kRefers<std::remove_cvref_t<State>>;

// A communication hook that takes `State`.
template <typename Hook, typename State>
concept Takes = std::is_invocable_r_v<BucketWork, Hook&, State, GradBucket&>;
// The same, or one that takes a reference to what the pointer `State` points to.
template <typename Hook, typename State>
concept HookOf = Takes<Hook, std::remove_cvref_t<State>&> ||
                 (kIsShared<State> && Takes<Hook, decltype(*std::declval<std::remove_cvref_t<State>&>())>);
}  // namespace ddp::detail

/// Divides the gradients by the number of ranks and all-reduces them, as without a hook. PyTorch:
/// `allreduce_hook`.
///
///     ddp->register_comm_hook(allreduce_hook);
BucketWork allreduce_hook(GradBucket& bucket);

/// Casts the gradients to float16 (bfloat16), divides and all-reduces them, and casts back: half of the
/// bytes. PyTorch: `fp16_compress_hook`, `bf16_compress_hook`.
BucketWork fp16_compress_hook(GradBucket& bucket);
/// Averages gradients as bfloat16. PyTorch: `bf16_compress_hook`.
BucketWork bf16_compress_hook(GradBucket& bucket);

/// Casts the gradients to float16 (bfloat16) for another hook, and its result back. PyTorch:
/// `fp16_compress_wrapper`, `bf16_compress_wrapper`.
///
///     ddp->register_comm_hook(fp16_compress_wrapper(PowerSGD({.matrix_approximation_rank = 2})));
CommHook fp16_compress_wrapper(CommHook hook);
/// Gives `hook` the gradients as bfloat16. PyTorch: `bf16_compress_wrapper`.
CommHook bf16_compress_wrapper(CommHook hook);

/// Divides `gradients` by the group's size and all-reduces them, for use in custom hooks.
BucketWork allreduce_average_async(at::Tensor gradients, const ProcessGroup& process_group,
                                   std::source_location where = std::source_location::current());

/// Options of PowerSGD under the names of PyTorch's `PowerSGDState`, with its defaults.
struct PowerSGDOptions {
  std::optional<ProcessGroup> process_group = std::nullopt;  ///< default: the bucket's
  /// rank of the low-rank matrices; a higher one costs more traffic and loses less
  std::int64_t matrix_approximation_rank = 1;
  /// Iterations that average uncompressed gradients; at least 2 with error feedback or warm start.
  std::int64_t start_powerSGD_iter = 1000;
  /// Gradients are compressed if that saves more than this factor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;              ///< adds the compression error to the next step's gradients
  bool warm_start = true;                      ///< starts each step with the matrices of the last
  double orthogonalization_epsilon = 0;        ///< added while columns are made orthogonal
  std::uint32_t random_seed = 0;               ///< the same on all ranks
  bool batch_tensors_with_same_shape = false;  ///< approximate matrices of one shape together
};

/// A communication hook that sends gradients as products of two low-rank matrices. Copies share their state.
/// PyTorch: `powerSGD_hook`, with the same random numbers; Vogels et al., PowerSGD (2019).
///
///     ddp->register_comm_hook(PowerSGD({.matrix_approximation_rank = 2, .start_powerSGD_iter = 100}));
class PowerSGD {
 public:
  /// Throws ArgumentError for the options that PyTorch rejects, and on a rank outside of `process_group`.
  explicit PowerSGD(const PowerSGDOptions& options = {});
  BucketWork operator()(GradBucket& bucket) const;

  /// The elements of all gradients since compression began, and the elements sent. PyTorch:
  /// `compression_stats`.
  struct CompressionStats {
    double rate = 0;                ///< numel_before / numel_after
    std::int64_t numel_before = 0;  ///< elements of the gradients
    std::int64_t numel_after = 0;   ///< elements that are sent
  };
  /// How much smaller the traffic became so far.
  CompressionStats compression_stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// PyTorch's name of PowerSGD where it is given to powerSGD_hook.
using PowerSGDState = PowerSGD;
/// Calls `state`, with PyTorch's arguments of a hook: `register_comm_hook(state, powerSGD_hook)`.
inline BucketWork powerSGD_hook(PowerSGDState& state, GradBucket& bucket) { return state(bucket); }

/// Options of OneBit.
struct OneBitOptions {
  std::int64_t start_iter = 2;  ///< iterations that average uncompressed gradients; at least 2
};

/// A communication hook that sends the sign of each gradient and the mean absolute value of each parameter's
/// gradients, so a thirty-second of the bytes to each other rank. It adds what that loses to the next step's
/// gradients. The result is the mean over the ranks in their order. Copies share their state. PyTorch has no
/// such hook; Seide et al., 1-Bit Stochastic Gradient Descent (2014).
class OneBit {
 public:
  /// Throws ArgumentError if start_iter is below 2.
  explicit OneBit(const OneBitOptions& options = {});
  BucketWork operator()(GradBucket& bucket) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Reduces the gradients of a host's ranks uncompressed, and applies `hook` to what crosses the network: each
/// rank owns one shard of the bucket, made of whole parameter rows, and runs `hook` on it with its
/// counterparts, one rank per host. Only as many ranks as the smallest host has own
/// a shard; on hosts of different sizes `hook` takes as many steps for each bucket of an iteration. Without
/// other hosts the result is allreduce_hook.
///
/// `process_group` is that of the DistributedDataParallel, by default the default group. All its ranks call
/// between_hosts(), which connects groups. Its backend is hierarchical, and gradients are on the CPU. Throws
/// ArgumentError if not, or for sparse gradients, in backward. State that `hook` holds is of this rank's
/// shards. PyTorch has no such hook.
///
///     ddp->register_comm_hook(between_hosts(bf16_compress_hook));
CommHook between_hosts(CommHook hook, const std::optional<ProcessGroup>& process_group = std::nullopt);

/// Options of PostLocalSGD under the names of PyTorch's `PostLocalSGDState`.
struct PostLocalSGDOptions {
  /// The ranks that average gradients after the first iterations, e.g. those of one host. Default: this rank
  /// alone, so that gradients stay local.
  std::optional<ProcessGroup> subgroup = std::nullopt;
  /// Iterations that average gradients over the whole group; at least 0.
  std::int64_t start_localSGD_iter = 0;
  /// False: gradients are not averaged after these iterations.
  bool post_local_gradient_allreduce = true;
};

/// A communication hook that averages gradients over the whole group in the first iterations, and over a
/// subgroup afterwards. PeriodicModelAverager averages the subgroups' parameters. Copies share their state.
/// PyTorch: `post_localSGD_hook`; Lin et al., Don't Use Large Mini-Batches, Use Local SGD (2018).
class PostLocalSGD {
 public:
  /// Throws ArgumentError if start_localSGD_iter is negative, and on a rank outside of `subgroup`.
  explicit PostLocalSGD(const PostLocalSGDOptions& options);
  BucketWork operator()(GradBucket& bucket) const;
  /// Iterations counted so far; stays at start_localSGD_iter.
  std::int64_t iteration() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Options of PeriodicModelAverager under PyTorch's names.
struct PeriodicModelAveragerOptions {
  std::int64_t period = 1;                                   ///< steps between two averagings; at least 1
  std::int64_t warmup_steps = 0;                             ///< steps before the first averaging
  std::optional<ProcessGroup> process_group = std::nullopt;  ///< default: the default group
};

/// Averages parameters over the ranks every `period` steps. PyTorch:
/// `torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager`.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  /// All ranks call it after each optimizer step. Averages those of the parameters that have a gradient.
  /// Throws DesyncError on all ranks, before a parameter is changed, if these are not the same on all.
  void average_parameters(const std::vector<at::Tensor>& parameters,
                          std::source_location where = std::source_location::current());
  /// Averages the optimizer's parameters, if a step is due.
  void average_parameters(const torch::optim::Optimizer& optimizer,
                          std::source_location where = std::source_location::current());

 private:
  bool is_due();
  void average(const std::vector<at::Tensor>& parameters, std::source_location where) const;

  PeriodicModelAveragerOptions options_;
  ProcessGroup group_;
  std::int64_t step_ = 0;
};

// PyTorch's namespaces of the same hooks.
namespace algorithms::ddp_comm_hooks::default_hooks {
using lockstep::allreduce_hook, lockstep::fp16_compress_hook, lockstep::bf16_compress_hook;
using lockstep::bf16_compress_wrapper, lockstep::fp16_compress_wrapper;
}  // namespace algorithms::ddp_comm_hooks::default_hooks
namespace algorithms::ddp_comm_hooks::powerSGD_hook {
using lockstep::PowerSGD, lockstep::PowerSGDOptions, lockstep::PowerSGDState, lockstep::powerSGD_hook;
}  // namespace algorithms::ddp_comm_hooks::powerSGD_hook
namespace default_hooks = algorithms::ddp_comm_hooks::default_hooks;
namespace powerSGD = algorithms::ddp_comm_hooks::powerSGD_hook;  // as PyTorch's tutorials import it

}  // namespace lockstep
