// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <lockstep/tensor_parallel/parallelize_module.h>

/// Layers and a loss for modules that are written for tensor parallel. All are collective over `mesh`, which
/// has one dimension; arguments that are wrong are ArgumentErrors.
namespace lockstep::tensor_parallel {

/// A Linear as ColwiseParallel cuts it: `weight` [out_features / size, in_features], `bias`
/// [out_features / size]. Its values are the parts of the Linear that LibTorch makes on the mesh's rank 0.
class ColumnParallelLinearImpl : public torch::nn::Module {
 public:
  ColumnParallelLinearImpl(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                           const ColwiseParallel& style = {},
                           std::source_location where = std::source_location::current());
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;
};
TORCH_MODULE(ColumnParallelLinear);

/// A Linear as RowwiseParallel cuts it: `weight` [out_features, in_features / size], `bias` [out_features].
class RowParallelLinearImpl : public torch::nn::Module {
 public:
  RowParallelLinearImpl(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                        const RowwiseParallel& style = {},
                        std::source_location where = std::source_location::current());
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;
};
TORCH_MODULE(RowParallelLinear);

/// An Embedding as RowwiseParallel cuts it: `weight` [num_embeddings / size, embedding_dim]. Takes whole
/// indices by default.
class VocabParallelEmbeddingImpl : public torch::nn::Module {
 public:
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options, const DeviceMesh& mesh,
                             const RowwiseParallel& style = {.input_layouts = Replicate()},
                             std::source_location where = std::source_location::current());
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;

 private:
  std::shared_ptr<torch::nn::EmbeddingImpl> embedding_;  // not registered; it has the same weight
};
TORCH_MODULE(VocabParallelEmbedding);

/// The cross entropy of logits that are cut along the classes, without gathering them: three all-reduces of
/// about one number for each sample. `input`: this rank's part of [classes], [batch, classes] or [batch,
/// classes, ...], as ColwiseParallel returns it; `target`: whole class indices, equal on all ranks. Returns
/// the loss of whole logits on all ranks, in the dtype of `input`. Smoothed labels, class weights (of all
/// classes) and `ignore_index` are as in LibTorch. It can be differentiated once. PyTorch:
/// `torch.nn.functional.cross_entropy` in `loss_parallel()`, which has no label smoothing.
at::Tensor loss_parallel(const at::Tensor& input, const at::Tensor& target, const DeviceMesh& mesh,
                         const torch::nn::functional::CrossEntropyFuncOptions& options = {},
                         std::source_location where = std::source_location::current());

}  // namespace lockstep::tensor_parallel
