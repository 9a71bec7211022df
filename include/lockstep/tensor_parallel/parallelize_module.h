// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <lockstep/device/module_ref.h>
#include <lockstep/runtime/device_mesh.h>

/// Tensor parallel: layers whose parameters are cut over the ranks of a mesh. PyTorch:
/// `torch.distributed.tensor.parallel`. Shorten the name:
/// `namespace tp = lockstep::tensor_parallel;`
namespace lockstep::tensor_parallel {

using tensor::Partial;
using tensor::Placement;
using tensor::Replicate;
using tensor::Shard;

/// PyTorch's argument `use_local_output` of a style. Only true compiles: forward returns this rank's part as an
/// at::Tensor, which loss_parallel(), redistribute() and the next layer take.
class UseLocalOutput {
 public:
  consteval UseLocalOutput(bool use_local_output) {  // NOLINT: implicit
    if (!use_local_output) for_false_there_is_no_DTensor_leave_use_local_output_out();
  }

 private:
  static void for_false_there_is_no_DTensor_leave_use_local_output_out() {}
};

/// Cuts the output features of a Linear (weight and bias along dimension 0) or of an Embedding (along
/// dimension 1). The last ranks may have fewer features, or none, as PyTorch's `chunk`.
struct ColwiseParallel {
  std::optional<Placement> input_layouts = std::nullopt;   ///< default: Replicate()
  std::optional<Placement> output_layouts = std::nullopt;  ///< default: Shard(-1)
  UseLocalOutput use_local_output = true;                  ///< false does not compile
};

/// Cuts the input features of a Linear (weight along dimension 1; the bias is whole and is added once), or
/// the rows of an Embedding, the vocabulary. As in PyTorch an Embedding of whole indices needs
/// `.input_layouts = Replicate()`.
struct RowwiseParallel {
  std::optional<Placement> input_layouts = std::nullopt;  ///< default: Shard(-1)
  /// Default: Replicate(). Partial() is this rank's term of the output, with its share of the bias; add such
  /// outputs and redistribute() the sum.
  std::optional<Placement> output_layouts = std::nullopt;
  UseLocalOutput use_local_output = true;  ///< false does not compile
};

/// A module with whole parameters and a part of the sequence, e.g. LayerNorm. Backward sums the parameters'
/// gradients over the ranks, so that they are equal on all. A Dropout draws from another random stream on
/// each rank, also where it is given other shards, such as a rank's attention heads. The Dropout is marked by a
/// change of its `options.p()` by less than 1e-9.
struct SequenceParallel {};

/// Converts the input of a module once for its ColwiseParallel Linear layers, such as that of an attention
/// for its query, key and value projections. Backward converts the sum of the gradients once. Layers of the
/// same plan share the input unless they set input_layouts; set it for a layer that gets another tensor. A
/// tensor that only some of the layers use is kept until the next forward.
///
/// Modules of LibTorch have no hooks, so the module's other code gets the input as it is. There is no
/// PrepareModuleOutput: set output_layouts of the layer whose output the module returns. parallelize_module()
/// throws ArgumentError for a module without a layer that shares the input. PyTorch: `PrepareModuleInput`.
struct PrepareModuleInput {
  Placement input_layouts;                        ///< of what the module gets
  Placement desired_input_layouts = Replicate();  ///< no other layout is supported
};

/// How parallelize_module() cuts a module.
using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput>;
/// Names of modules, in which each component may have the wildcards *, ? and [] of Python's `fnmatch`. ""
/// is the module itself.
using ParallelizePlan = std::vector<std::pair<std::string, ParallelStyle>>;

/// Cuts layers of a module. PyTorch: `parallelize_module`.
///
///     tp::parallelize_module(net, mesh["tp"], {{"layers.*.fc1", tp::ColwiseParallel()},
///                                               {"layers.*.fc2", tp::RowwiseParallel()}});
///
/// The module's code and its parameters' names stay as they are. A parameter becomes this rank's part of it,
/// in the same tensor, so that optimizers, DistributedDataParallel and fully_shard() take it as any other;
/// all come after this call, and `to()` and `clone()` of the module before. Forward gives the layers, and
/// gets from them, tensors of the styles' layouts; nothing checks that values which a layout says are equal
/// on all ranks are.
///
/// Collective over `mesh`, which has one dimension. All parameters and buffers of the module, and the random
/// streams of CPU and device, become those of the mesh's rank 0. An operator that uses a cut parameter in a
/// way that has no rule is an Error that names both; `detach()` gives the part as plain data. Tied parameters
/// stay tied if the styles cut them alike. get_model_state_dict(), get_optimizer_state_dict() and
/// clip_grad_norm_() of the module are of whole parameters and gradients.
///
/// Throws ArgumentError, with the caller's line, for a pattern without a match, a module that the style does
/// not support, a Partial() layout except of what RowwiseParallel returns, and a parameter that has a
/// gradient, is cut in another way, or is used already by DistributedDataParallel or fully_shard(). The other
/// ranks then throw DesyncError. All ranks throw DesyncError if plans, parameters or buffers differ, and
/// ArgumentError for a parameter or buffer that cannot be sent. In all of these cases nothing has changed.
void parallelize_module(ModuleRef module, const DeviceMesh& mesh, const ParallelizePlan& plan,
                        std::source_location where = std::source_location::current());

/// The tensor, of which this rank has `current`, as `target`. Its gradient takes the way back. Sizes that are
/// cut are multiples of the mesh's size. Collective. Throws ArgumentError. PyTorch: `DTensor.from_local`,
/// `redistribute` and `to_local`.
at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, Placement current, Placement target,
                        std::source_location where = std::source_location::current());

/// `num_heads` divided by the mesh's size: the heads of this rank where ColwiseParallel cuts the projections
/// of attention. Throws ArgumentError if they do not divide. Not in PyTorch.
std::int64_t local_heads(std::int64_t num_heads, const DeviceMesh& mesh,
                         std::source_location where = std::source_location::current());

// Layers and a loss for modules that are written for tensor parallel. All are collective over `mesh`, which
// has one dimension; arguments that are wrong are ArgumentErrors.

/// A Linear as ColwiseParallel cuts it: `weight` [out_features / size, in_features], `bias`
/// [out_features / size]. Its values are the parts of the Linear that LibTorch makes on the mesh's rank 0.
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  ColumnParallelLinearImpl(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                           const ColwiseParallel& style = {},
                           std::source_location where = std::source_location::current());
  /// The input of its layout -> this rank's part of the output, or the whole, as the style says.
  at::Tensor forward(const at::Tensor& input);

  /// This rank's part: `weight` [out_features / size, in_features], `bias` [out_features / size].
  at::Tensor weight, bias;
};
class ColumnParallelLinear : public torch::nn::ModuleHolder<ColumnParallelLinearImpl> {
 public:
  /// The module that it holds.
  using Impl = ColumnParallelLinearImpl;

  ColumnParallelLinear(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}    // NOLINT: as of LibTorch's holders
  ColumnParallelLinear(std::shared_ptr<Impl> layer)  // NOLINT
      : torch::nn::ModuleHolder<Impl>(std::move(layer)) {}
  /// As ColumnParallelLinearImpl's constructor.
  ColumnParallelLinear(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                       const ColwiseParallel& style = {},
                       std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(options, mesh, style, where)) {}
};

/// A Linear as RowwiseParallel cuts it: `weight` [out_features, in_features / size], `bias` [out_features].
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  RowParallelLinearImpl(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                        const RowwiseParallel& style = {},
                        std::source_location where = std::source_location::current());
  /// The input of its layout -> the output, summed over the ranks, in the layout of the style.
  at::Tensor forward(const at::Tensor& input);

  /// This rank's part of `weight`, [out_features, in_features / size], and the whole `bias`.
  at::Tensor weight, bias;
};
class RowParallelLinear : public torch::nn::ModuleHolder<RowParallelLinearImpl> {
 public:
  /// The module that it holds.
  using Impl = RowParallelLinearImpl;

  RowParallelLinear(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}  // NOLINT: as of LibTorch's holders
  RowParallelLinear(std::shared_ptr<Impl> layer)   // NOLINT
      : torch::nn::ModuleHolder<Impl>(std::move(layer)) {}
  /// As RowParallelLinearImpl's constructor.
  RowParallelLinear(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                    const RowwiseParallel& style = {},
                    std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(options, mesh, style, where)) {}
};

/// An Embedding as RowwiseParallel cuts it: `weight` [num_embeddings / size, embedding_dim]. Takes whole
/// indices by default.
class VocabParallelEmbeddingImpl : public torch::nn::Module {
 public:
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options, const DeviceMesh& mesh,
                             const RowwiseParallel& style = {.input_layouts = Replicate()},
                             std::source_location where = std::source_location::current());
  /// Indices, equal on all ranks -> embeddings.
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;  ///< this rank's rows

 private:
  std::shared_ptr<torch::nn::EmbeddingImpl> embedding_;  // not registered; it has the same weight
};
class VocabParallelEmbedding : public torch::nn::ModuleHolder<VocabParallelEmbeddingImpl> {
 public:
  /// The module that it holds.
  using Impl = VocabParallelEmbeddingImpl;

  VocabParallelEmbedding(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}      // NOLINT: as of LibTorch's holders
  VocabParallelEmbedding(std::shared_ptr<Impl> layer)  // NOLINT
      : torch::nn::ModuleHolder<Impl>(std::move(layer)) {}
  /// As VocabParallelEmbeddingImpl's constructor.
  VocabParallelEmbedding(const torch::nn::EmbeddingOptions& options, const DeviceMesh& mesh,
                         const RowwiseParallel& style = {.input_layouts = Replicate()},
                         std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(options, mesh, style, where)) {}
};

/// The cross entropy of logits that are cut along the classes, without gathering them: three all-reduces of
/// about one number for each sample. `input`: this rank's part of [classes], [batch, classes] or [batch,
/// classes, ...], as ColwiseParallel returns it; `target`: whole class indices, equal on all ranks. Returns
/// the loss of whole logits on all ranks, in the dtype of `input`. Smoothed labels, class weights (of all
/// classes) and `ignore_index` are as in LibTorch. It can be differentiated once. PyTorch:
/// `torch.nn.functional.cross_entropy` in `loss_parallel()`, which has no label smoothing.
at::Tensor loss_parallel(const at::Tensor& input, const at::Tensor& target, const DeviceMesh& mesh,
                         const torch::nn::functional::CrossEntropyFuncOptions& options = {},
                         std::source_location where = std::source_location::current());

/// Does not compile: PyTorch's context, in which `cross_entropy` takes a DTensor.
template <typename... Nothing>
auto loss_parallel(const Nothing&... /*nothing*/)
  requires(sizeof...(Nothing) == 0)
{
  static_assert(sizeof...(Nothing) > 0,
                "call loss_parallel(logits, target, mesh) in place of cross_entropy(logits, target)");
}

}  // namespace lockstep::tensor_parallel

/// PyTorch's name of lockstep::tensor_parallel.
namespace lockstep::tensor {
namespace parallel = tensor_parallel;

/// Does not compile: there is no DTensor.
template <typename Tensor>
auto distribute_tensor(const Tensor&, const DeviceMesh&, const std::vector<Placement>& = {}) {
  static_assert(sizeof(Tensor) == 0,
                "there is no DTensor: parallelize_module() cuts parameters, redistribute() other tensors");
}

/// Does not compile: a program has this rank's part as an at::Tensor, and in state dicts as a ShardedTensor.
struct DTensor {
  template <typename... Arguments>
  explicit DTensor(const Arguments&... /*arguments*/) {
    static_assert(
        sizeof...(Arguments) > 1000,
        "there is no DTensor: full_tensor(net, name) is a whole parameter, ShardedTensor a part in a "
        "state dict");
  }
  /// The last argument of from_local().
  struct FromLocalOptions {
    bool run_check = false;  ///< whether ranks compare what they pass
  };
  /// Does not compile.
  template <typename Tensor>
  static DTensor from_local(const Tensor& tensor, const DeviceMesh& mesh,
                            const std::vector<Placement>& /*placements*/ = {},
                            const FromLocalOptions& /*options*/ = {}) {
    return DTensor(tensor, mesh);
  }
};
}  // namespace lockstep::tensor

// Without a namespace, as Python imports them. The functions and layers that PyTorch does not have are in tensor_parallel.
namespace lockstep {
using tensor::DTensor, tensor::distribute_tensor, tensor::Partial, tensor::Replicate, tensor::Shard;
using tensor_parallel::ColwiseParallel, tensor_parallel::PrepareModuleInput, tensor_parallel::RowwiseParallel;
using tensor_parallel::parallelize_module, tensor_parallel::SequenceParallel;
}  // namespace lockstep
