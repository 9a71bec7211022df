// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <utility>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <lockstep/comm/process_group.h>

namespace lockstep {

class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<2, SyncBatchNormImpl> {
  using Base = torch::nn::BatchNormImplBase<2, SyncBatchNormImpl>;

 public:
  /// `group`: the ranks that normalize together; default: the default group as it is at each forward for
  /// training. Where there is none the layer is a plain BatchNorm, as in PyTorch.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& layer,
                             std::optional<ProcessGroup> group = std::nullopt);

  /// `input`: [N, C, ...] with two dimensions or more, of any layout; the result has its shape and dtype.
  /// In training all ranks of the group call it, each with as many samples as it has, none included, and if
  /// one of them runs backward all do. Throws ArgumentError when the ranks have one value per channel
  /// together.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

  const std::optional<ProcessGroup>& process_group() const { return group_; }
  void set_process_group(std::optional<ProcessGroup> group) { group_ = std::move(group); }

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  double next_momentum();

  std::optional<ProcessGroup> group_;
};

/// Batch normalization over the samples of all ranks of a group: forward, backward and running statistics
/// are those of one BatchNorm over the joined batch, and every rank's are the same. PyTorch:
/// `torch.nn.SyncBatchNorm`; this one works on the CPU too, and with a single sample per rank.
///
/// Parameters are fp32 or fp64, or of the input's own type; statistics of bf16 and fp16 input are taken in
/// fp32. Sums across ranks are made in fp64. In eval(), and in a group of one, it is a plain BatchNorm.
TORCH_MODULE(SyncBatchNorm);

/// From now on every BatchNorm1d, BatchNorm2d and BatchNorm3d in `module` (itself included) normalizes
/// over all ranks of `group`, as SyncBatchNorm does. Weights, statistics, options and mode are kept, and the
/// layers stay the objects they are, so that members of your modules, optimizers and names need no change.
/// It also gives `group` to the SyncBatchNorms there. PyTorch: `SyncBatchNorm.convert_sync_batchnorm`.
///
/// What follows from keeping the layers:
///  - a copy made by clone() is not converted; convert the copy;
///  - a layer is known by its weight: where you put another tensor in its place, or call reset(), convert
///  again;
///  - LibTorch's own layers refuse a batch of one value per channel in training, before the ranks are asked;
///    where a rank may get one, use SyncBatchNorm itself. (The others wait until that rank's error ends it.)
///
/// `group`: as for SyncBatchNorm. Not safe while another thread uses the module.
void convert_sync_batchnorm(torch::nn::Module& module, std::optional<ProcessGroup> group = std::nullopt);

/// The same for a module holder or shared_ptr; returns it.
template <typename Module>
  requires requires(Module& module) { static_cast<torch::nn::Module&>(*module); }
Module convert_sync_batchnorm(Module module, std::optional<ProcessGroup> group = std::nullopt) {
  convert_sync_batchnorm(static_cast<torch::nn::Module&>(*module), std::move(group));
  return module;
}

}  // namespace lockstep
