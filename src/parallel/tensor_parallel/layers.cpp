// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/GradMode.h>
#include <torch/nn/functional/linear.h>

#include <lockstep/tensor_parallel/layers.h>

#include "intercept/storage_guard.h"
#include "tensor_parallel/cut.h"

namespace lockstep::tensor_parallel {
namespace {

// Cuts the tensors of LibTorch's layer, which the caller takes.
template <class Style>
torch::nn::Linear cut_layer(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                            const Style& style, const char* name, std::source_location where) {
  torch::nn::Linear linear(options);
  const c10::NoGradGuard no_gradients;
  Cuts cuts(ranks_of(mesh, name, where), name);
  cuts.make([&] {
    check_layouts(style, name, cuts.ranks());
    cut_linear(linear->weight, linear->bias, std::string(name) + ".", style, cuts);
    return fmt::format("{}, bias={}\n", describe_style(name, style), linear->bias.defined());
  });
  if (linear->bias.defined() && !intercept::has_guard(linear->bias))
    cuts.ranks().group.broadcast(linear->bias.detach(), 0, where);
  return linear;
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::LinearOptions& options,
                                                   const DeviceMesh& mesh, const ColwiseParallel& style,
                                                   std::source_location where) {
  const auto linear = cut_layer(options, mesh, style, "ColumnParallelLinear", where);
  weight = register_parameter("weight", linear->weight);
  bias = register_parameter("bias", linear->bias, linear->bias.defined());
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  return torch::nn::functional::linear(input, weight, bias);
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                                             const RowwiseParallel& style, std::source_location where) {
  const auto linear = cut_layer(options, mesh, style, "RowParallelLinear", where);
  weight = register_parameter("weight", linear->weight);
  bias = register_parameter("bias", linear->bias, linear->bias.defined());
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  return torch::nn::functional::linear(input, weight, bias);
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options,
                                                       const DeviceMesh& mesh, const RowwiseParallel& style,
                                                       std::source_location where)
    : embedding_(std::make_shared<torch::nn::EmbeddingImpl>(options)) {
  const c10::NoGradGuard no_gradients;
  constexpr const char* kName = "VocabParallelEmbedding";
  Cuts cuts(ranks_of(mesh, kName, where), kName);
  cuts.make([&] {
    check_layouts(style, kName, cuts.ranks());
    cut_embedding(*embedding_, std::string(kName) + ".", style, cuts);
    return describe_style(kName, style) + "\n";
  });
  weight = register_parameter("weight", embedding_->weight);
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& indices) {
  return embedding_->forward(indices);
}

}  // namespace lockstep::tensor_parallel
