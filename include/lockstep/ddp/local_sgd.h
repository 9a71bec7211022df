// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

/// Options of PostLocalSGD under the names of PyTorch's `PostLocalSGDState`.
struct PostLocalSGDOptions {
  /// Within which gradients are averaged after the first iterations, e.g. the ranks of one host. Without it
  /// this rank's own group of one: gradients stay local.
  std::optional<ProcessGroup> subgroup = std::nullopt;
  /// So many iterations average gradients over the whole group; 0 or more.
  std::int64_t start_localSGD_iter = 0;
  /// False: afterwards gradients are not averaged at all.
  bool post_local_gradient_allreduce = true;
};

/// A communication hook that averages gradients over the whole group at first and then over a part of it
/// only; PeriodicModelAverager keeps the parts together. Copies share their state. PyTorch:
/// `post_localSGD_hook`; Lin et al., Don't Use Large Mini-Batches, Use Local SGD (2018).
class PostLocalSGD {
 public:
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
  std::int64_t period = 1;        ///< steps from one averaging to the next, 1 or more
  std::int64_t warmup_steps = 0;  ///< steps before the first one
  std::optional<ProcessGroup> process_group = std::nullopt;  ///< default: the default group
};

/// Averages parameters over the ranks once in `period` steps. PyTorch:
/// `torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager`.
class PeriodicModelAverager {
 public:
  explicit PeriodicModelAverager(const PeriodicModelAveragerOptions& options);

  /// To be called by all ranks after each optimizer step.
  void average_parameters(const std::vector<at::Tensor>& parameters);
  /// The parameters of all the optimizer's groups that have a gradient.
  void average_parameters(const torch::optim::Optimizer& optimizer);

 private:
  bool is_due();
  void average(const std::vector<at::Tensor>& parameters) const;

  PeriodicModelAveragerOptions options_;
  ProcessGroup group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
