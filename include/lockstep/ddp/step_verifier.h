// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/device/module_ref.h>
#include <lockstep/device/pytree.h>

namespace lockstep {

namespace ddp {
struct Verdict;
}

/// The gradient of a rank differs from the one that other ranks computed from the same batch, or its parameters differ
/// from theirs. The optimizer has not stepped. All ranks throw it in the same step, or only the wrong ones: see OnMismatch.
/// Data: ranks() that are wrong or, where no majority decides, all that may be; group(), step(), tensor().
/// Remedy: replace the host of the rank, and continue from a checkpoint.
class VerificationError : public Error {
 public:
  VerificationError(const std::string& message, ErrorDetails details, std::int64_t step, std::string tensor,
                    bool is_on_all_ranks = true)
      : Error(message, std::move(details)),
        step_(step),
        tensor_(std::move(tensor)),
        is_on_all_ranks_(is_on_all_ranks) {}

  /// The step that has not been made, counted from 1.
  std::int64_t step() const { return step_; }
  /// The first parameter whose gradient or values differ, or a state of the optimizer.
  const std::string& tensor() const { return tensor_; }
  /// Whether all ranks throw it in this step. False: only the wrong ones, which are replaced.
  bool is_on_all_ranks() const { return is_on_all_ranks_; }

 private:
  std::int64_t step_;
  std::string tensor_;
  bool is_on_all_ranks_;
};

/// How StepVerifier reacts to a rank that computes wrongly.
enum class OnMismatch : std::uint8_t {
  /// Throws VerificationError on all ranks. If it leaves elastic::run() under `lockstep run --on-loss replace` or
  /// `shrink`, the launcher ends the run: it replaces and restarts no rank, even if --max-restarts allows more.
  stop,
  /// Within elastic::run() under `lockstep run --on-loss replace` or `shrink` only the wrong rank throws
  /// VerificationError, which ends its process. The others log a warning and wait for the end of that process, whose PeerLost leaves
  /// StepVerifier::run(), so that all ranks return to the last commit. Elsewhere, where no majority names one rank, and
  /// when parameters differ, which a commit may have, too: as `stop`.
  replace
};

/// Options of StepVerifier, the same on all ranks.
struct StepVerifierOptions {
  /// Steps between two verified ones, at least 1. The step of this number is the first.
  std::int64_t interval = 50;
  /// False: a verified step verifies one rank, the ranks take turns. True: it verifies every rank, each by its
  /// neighbour at the same time. The others would wait otherwise, so where each rank has its own cores this takes no
  /// longer.
  bool all_ranks = false;
  /// The reaction to a rank that computes wrongly.
  OnMismatch on_mismatch = OnMismatch::stop;
  /// Calls of run() in a step of the optimizer, as with gradient accumulation. All of a verified step are verified.
  std::int64_t accumulation_steps = 1;
  /// Its states are compared with the parameters, unless it is a ZeroRedundancyOptimizer, whose states differ between
  /// ranks. It must outlive the verifier.
  torch::optim::Optimizer* optimizer = nullptr;
  /// Random generators that forward and backward use besides the default ones of the CPU and of the rank's GPU.
  std::vector<at::Generator> generators = {};
};

/// Finds a rank that computes wrongly without an error, as a defective processor or memory does. In a verified step
/// another rank computes the forward and backward of a rank again, from its batch, random numbers, buffers and
/// gradients before, and the bits of both gradients are compared before the optimizer steps: those of the rank as they
/// are in the buckets when their reductions start. A third rank decides which of two is wrong. Before that, all ranks
/// compare the parameters and states of the optimizer. docs/verify.md has costs and limits. Not in PyTorch.
///
///     lockstep::StepVerifier verifier(ddp, {.interval = 50, .optimizer = &optimizer});
///     for (auto& batch : loader) {
///       optimizer.zero_grad();
///       verifier.run(batch, [&](auto& each) { F::cross_entropy(ddp->forward(each.data), each.target).backward(); });
///       optimizer.step();
///     }
///
/// In a group of one rank it only calls the function. Not thread-safe.
class StepVerifier {
 public:
  /// `module`: a DistributedDataParallel, which must outlive the verifier. Collective. Throws ArgumentError for other
  /// modules, such as those of fully_shard(), for layers whose forward needs other ranks (SyncBatchNorm,
  /// parallelize_module()), for options of DistributedDataParallel that docs/ddp.md excludes, and for invalid options;
  /// DesyncError if the ranks compute with different numbers of threads or instruction sets.
  explicit StepVerifier(ModuleRef module, const StepVerifierOptions& options = {},
                        std::source_location where = std::source_location::current());

  /// Calls `pass(batch)`, which computes forward and backward and does not step the optimizer. In a verified step it
  /// then verifies the gradients, for which some ranks call `pass` again with a copy of `batch` that has the tensors of
  /// another rank. There it must make no calls on a group, nor train a second DistributedDataParallel. The batches' tensors
  /// are replaced: their number must be equal on all ranks, their sizes may differ. Members of the batch that are
  /// not tensors keep the values of the calling rank. Gradients, buffers and random generators are as after the first call. All ranks call
  /// it equally often. A call makes one backward pass that is reduced; call run() for each, with accumulation_steps.
  ///
  /// Throws VerificationError, the errors of calls and those of `pass`. Throws ArgumentError inside of join() and of a
  /// GraphedStep, for sparse gradients, and for batches whose tensors cannot be replaced in a copy.
  template <typename Batch, typename Pass>
    requires PyTree<std::remove_const_t<Batch>> && std::copy_constructible<std::remove_const_t<Batch>>
  void run(Batch& batch, Pass&& pass, std::source_location where = std::source_location::current()) {
    using Own = std::remove_const_t<Batch>;
    if (!begin_pass()) return static_cast<void>(pass(batch));
    verify(
        AnyPyTree(Own(batch)), [&] { pass(batch); },
        [&](const AnyPyTree& other) {
          auto of_other = other.get<Own>();
          pass(of_other);
        },
        where);
  }

  /// Whether `pass` runs for another rank, so that it must not count the batch.
  bool is_replaying() const { return is_replaying_; }
  /// Passes that have been verified since construction, of whichever rank.
  std::int64_t verified_passes() const { return verified_; }

  /// The position in the run, for TrainingState::add(), so that all ranks verify the same step after a resume.
  Dict state_dict() const;
  /// Continues at the position that state_dict() has returned. Throws CheckpointError for another dict.
  void load_state_dict(const Dict& state_dict);

 private:
  using Replay = std::function<void(const AnyPyTree& batch)>;

  // Counts a call of run(). Whether it is verified.
  bool begin_pass();
  void verify(const AnyPyTree& batch, const std::function<void()>& pass, const Replay& replay,
              std::source_location where);

  void compare_tensors(std::source_location where) const;
  ddp::Verdict compare_gradients(const AnyPyTree& batch, const std::function<void()>& pass,
                                 const Replay& replay, std::source_location where);
  // The ranks that the present step verifies.
  std::vector<int> subjects() const;
  [[noreturn]] void refuse(const ddp::Verdict& verdict, const std::string& text, const std::string& tensor,
                           std::source_location where) const;

  struct Position {
    std::int64_t step = 0;  // complete ones
    std::int64_t pass = 0;  // of the next one, complete ones
  };

  DistributedDataParallelModule& ddp_;
  StepVerifierOptions options_;
  Position next_;     // call of run()
  Position current_;  // the last one
  std::int64_t verified_ = 0;
  bool is_replaying_ = false;
};

}  // namespace lockstep
