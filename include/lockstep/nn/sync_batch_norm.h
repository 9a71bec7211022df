// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/device/module_ref.h>

namespace lockstep {

class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<2, SyncBatchNormImpl>, public VersionedModule {
  using Base = torch::nn::BatchNormImplBase<2, SyncBatchNormImpl>;

 public:
  /// `process_group`: the ranks that normalize together. Default: the default group at the time of each
  /// forward; without one the layer is a plain BatchNorm, as in PyTorch.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& layer,
                             const std::optional<ProcessGroup>& process_group = std::nullopt,
                             std::source_location where = std::source_location::current());

  /// Normalizes `input`: [N, C, ...] with at least two dimensions and any layout. The result has its shape
  /// and dtype. In training all ranks of the group call it, each with any number of samples, also none; if
  /// one runs backward, all must. In a Join only the ranks that have data do. Throws ArgumentError if all
  /// ranks together have one value per channel.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;
  std::int64_t version() const override { return 2; }

  /// The group of the statistics; nullopt: the default group.
  const std::optional<ProcessGroup>& process_group() const { return group_; }
  /// Sets the group of the statistics; nullopt: the default group.
  void set_process_group(const std::optional<ProcessGroup>& process_group);

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  double next_momentum();

  std::optional<ProcessGroup> group_;
  std::source_location where_;  // of the constructor: calls and errors of forward() name it
};

/// Batch normalization over the samples of all ranks of a group. Forward, backward and running statistics are
/// those of one BatchNorm over the joined batch, and equal on every rank. PyTorch: `torch.nn.SyncBatchNorm`;
/// this one also supports the CPU and a single sample per rank.
///
/// Parameters are fp32, fp64 or of the input's dtype. Statistics of bf16 and fp16 input are computed in fp32,
/// sums across ranks in fp64. In eval(), and in a group of one, it is a plain BatchNorm.
class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl> {
 public:
  /// The module that it holds.
  using Impl = SyncBatchNormImpl;

  SyncBatchNorm(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}  // NOLINT: as of LibTorch's holders
  SyncBatchNorm(std::shared_ptr<Impl> layer)       // NOLINT
      : torch::nn::ModuleHolder<Impl>(std::move(layer)) {}
  /// As SyncBatchNormImpl's constructor.
  explicit SyncBatchNorm(const torch::nn::BatchNormOptions& layer,
                         const std::optional<ProcessGroup>& process_group = std::nullopt,
                         std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(layer, process_group, where)) {}

  /// lockstep::convert_sync_batchnorm(), where PyTorch has it: `SyncBatchNorm::convert_sync_batchnorm(net)`.
  template <typename Module>
  static auto convert_sync_batchnorm(Module&& module,
                                     const std::optional<ProcessGroup>& process_group = std::nullopt,
                                     std::source_location where = std::source_location::current());
};

/// Makes every BatchNorm1d, BatchNorm2d and BatchNorm3d in `module` (itself included) normalize over all
/// ranks of `process_group`, as SyncBatchNorm does, and gives `process_group` to the SyncBatchNorms in it.
/// Weights, statistics, options and mode are kept. The layers stay the same objects, so members, optimizers
/// and names need no change. PyTorch: `SyncBatchNorm.convert_sync_batchnorm`.
///
/// Limits, because the layers stay the same objects:
///  - A copy made by clone() is not converted; convert the copy. That of optim::AveragedModel is converted.
///  - A layer is found by its member `weight`, even after another tensor has been assigned to it.
///  - LibTorch's own layers throw for a batch of one value per channel in training before the ranks
///    communicate, and the other ranks wait until that rank exits. Use SyncBatchNorm if a rank may get one.
///
/// `process_group`: as for SyncBatchNorm. Throws ArgumentError if `module` is a layer outside of any
/// shared_ptr. Not safe while another thread uses the module.
void convert_sync_batchnorm(ModuleRef module, const std::optional<ProcessGroup>& process_group = std::nullopt,
                            std::source_location where = std::source_location::current());

/// Converts a module holder or shared_ptr, and returns it.
template <ModulePointer Module>
Module convert_sync_batchnorm(Module module, const std::optional<ProcessGroup>& process_group = std::nullopt,
                              std::source_location where = std::source_location::current()) {
  convert_sync_batchnorm(ModuleRef(module), process_group, where);
  return module;
}

template <typename Module>
auto SyncBatchNorm::convert_sync_batchnorm(Module&& module, const std::optional<ProcessGroup>& process_group,
                                           std::source_location where) {
  return lockstep::convert_sync_batchnorm(std::forward<Module>(module), process_group, where);
}

namespace nn {
using lockstep::SyncBatchNorm;
}

}  // namespace lockstep
