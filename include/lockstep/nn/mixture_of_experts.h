// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <lockstep/device/module_ref.h>
#include <lockstep/nn/wrapped_module.h>
#include <lockstep/runtime/device_mesh.h>

namespace lockstep {

/// Options of MixtureOfExperts.
struct MixtureOfExpertsOptions {
  std::int64_t dim = 0;          ///< required: the elements of a token
  std::int64_t num_experts = 0;  ///< required: of all ranks; a multiple of the mesh's size
  /// Experts of a token, those of the greatest probabilities.
  std::int64_t top_k = 2;
  /// An expert takes at most ceil(capacity_factor * top_k * tokens / num_experts) tokens of each rank, where
  /// `tokens` is their number on that rank. The others are dropped: first the later choices of a token, then
  /// the later tokens; a dropped token gets zero from that expert. Default: no token is dropped.
  std::optional<double> capacity_factor = std::nullopt;
  /// Divides the probabilities of a token's experts by their sum, as GShard and Mixtral do. Default: with a
  /// top_k of more than 1; with 1 it is not possible, since the gate would have no gradient. transformers:
  /// `norm_topk_prob`.
  std::optional<bool> norm_topk_prob = std::nullopt;
  /// One dimension. Rank r of n has the r-th of n equal parts of the experts. Default: all experts are in
  /// this process.
  std::optional<DeviceMesh> mesh = std::nullopt;
};

/// A module whose forward maps tokens [n, dim], n >= 0, to [n, dim].
class Expert {
 public:
  /// `net`: a module holder, e.g. torch::nn::Sequential, or a shared_ptr of a module.
  template <typename Net>
  Expert(const Net& net) {
    const auto pointer = nn::WrappedBy<Net>::pointer(net);
    module_ = pointer;
    forward_ = [pointer](const at::Tensor& tokens) { return pointer->forward(tokens); };
  }

  /// The module of the expert.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// The expert's output for its tokens.
  at::Tensor forward(const at::Tensor& tokens) const { return forward_(tokens); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
};

/// The result of MixtureOfExperts.
struct MixtureOfExpertsOutput {
  at::Tensor output;         ///< of the input's shape; zeros for a token that all its experts dropped
  at::Tensor aux_loss;       ///< no dimensions, float32 or float64; 1 if the experts have equal loads
  std::int64_t dropped = 0;  ///< choices of this rank's tokens that were dropped

  /// Makes it a PyTree.
  template <typename F>
  void visit_tensors(F&& f) {
    f(output);
    f(aux_loss);
  }
};

class MixtureOfExpertsImpl : public torch::nn::Module {
 public:
  /// Calls `make_expert` num_experts times on every rank, in the order of the experts, and keeps this rank's.
  /// So ranks that start with one random seed have the experts of one process. Throws ArgumentError.
  MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options, const std::function<Expert()>& make_expert,
                       std::source_location where = std::source_location::current());

  /// `input`: this rank's tokens [..., dim]; their number may differ between ranks. Collective over the mesh,
  /// also without tokens. Throws ArgumentError.
  MixtureOfExpertsOutput forward(const at::Tensor& input);

  /// The options that the constructor was given.
  const MixtureOfExpertsOptions& options() const { return options_; }
  /// The ranks of the mesh, if other ranks have other experts.
  const std::optional<ProcessGroup>& expert_group() const { return group_; }

  torch::nn::Linear gate{nullptr};  ///< dim -> num_experts, without bias
  /// This rank's experts, e.g. for fully_shard() over the ranks that have the same ones.
  std::shared_ptr<torch::nn::Module> experts;

 private:
  struct Routes;

  Routes route(const at::Tensor& tokens);
  at::Tensor run_experts(const at::Tensor& rows, const std::vector<std::int64_t>& counts) const;
  std::int64_t local_experts() const { return static_cast<std::int64_t>(experts_.size()); }

  MixtureOfExpertsOptions options_;
  std::optional<ProcessGroup> group_;
  std::vector<Expert> experts_;  // this rank's
  std::source_location where_;   // of the constructor: calls and errors of forward() and backward name it
};

/// A layer of experts, of which each token goes to `top_k`, with expert parallelism over a mesh.
///
///     using namespace torch::nn;
///     const MixtureOfExpertsOptions options{.dim = 64, .num_experts = 8, .mesh = mesh["ep"]};
///     MixtureOfExperts moe(options, [] { return Sequential(Linear(64, 256), GELU(), Linear(256, 64)); });
///     auto [output, aux_loss, dropped] = moe->forward(x);
///
/// The gate's probabilities, a softmax in float32 at least, weight the outputs of a token's experts. An
/// all-to-all sends the tokens to the ranks that have their experts, and one sends the results back; backward
/// makes both again. So all ranks of the mesh run forward and backward alike.
///
/// `aux_loss` is num_experts * sum_e(f_e * P_e), where f_e is the share of this rank's choices for expert e,
/// before drops, and P_e the mean of its probability: the loss of Switch Transformer (Fedus, Zoph, Shazeer,
/// 2021), for top_k choices. Add it to the loss, e.g. times 0.01. The capacity is as in GShard (Lepikhin et
/// al., 2020).
///
/// Gradients of experts are those of the mean of the losses of the mesh's ranks, as DistributedDataParallel
/// makes the others; it must not reduce them: `.params_and_buffers_to_ignore = expert_names(*net)`.
/// fully_shard() takes experts over the ranks that have the same ones: `fully_shard(moe->experts, {.mesh =
/// mesh["dp"]})`, before the rest of the net. Names of parameters are `gate.weight` and `experts.<e>.<name>`,
/// with e counted over all ranks.
class MixtureOfExperts : public torch::nn::ModuleHolder<MixtureOfExpertsImpl> {
 public:
  /// The module that it holds.
  using Impl = MixtureOfExpertsImpl;

  MixtureOfExperts(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}  // NOLINT: as of LibTorch's holders
  MixtureOfExperts(std::shared_ptr<Impl> layer)    // NOLINT
      : torch::nn::ModuleHolder<Impl>(std::move(layer)) {}
  /// As MixtureOfExpertsImpl's constructor.
  MixtureOfExperts(const MixtureOfExpertsOptions& options, const std::function<Expert()>& make_expert,
                   std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(options, make_expert, where)) {}
};

/// The names, within `module`, of the parameters and buffers of experts that other ranks do not have.
std::vector<std::string> expert_names(ConstModuleRef module);

}  // namespace lockstep
