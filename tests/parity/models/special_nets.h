// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include <torch/torch.h>

#include <lockstep/ddp/activation_checkpoint.h>

namespace lockstep::testing {

// A mixture of which each step uses one expert, with a layer that no step uses and, if asked for, a second
// output that the loss does not depend on: [batch, 1, 28, 28], expert -> logits [batch, 10], something else.
struct ExpertsImpl : torch::nn::Module {
  explicit ExpertsImpl(bool two_outputs) : two_outputs_(two_outputs) {
    input = register_module("input", torch::nn::Linear(784, 16));
    experts = register_module("experts", torch::nn::ModuleList());
    for (int i = 0; i < 4; ++i) experts->push_back(torch::nn::Linear(16, 16));
    never = register_module("never", torch::nn::Linear(16, 16));
    aside = register_module("aside", torch::nn::Linear(16, 3));
    out = register_module("out", torch::nn::Linear(16, 10));
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, int which) {
    auto h = at::relu(input->forward(x.flatten(1)));
    h = at::relu(experts[static_cast<std::size_t>(which)]->as<torch::nn::Linear>()->forward(h));
    return {out->forward(h), two_outputs_ ? aside->forward(h) : at::Tensor()};
  }
  torch::nn::Linear input{nullptr}, never{nullptr}, aside{nullptr}, out{nullptr};
  torch::nn::ModuleList experts{nullptr};

 private:
  bool two_outputs_;
};
TORCH_MODULE(Experts);

// Embeddings with sparse gradients.
struct SparseNetImpl : torch::nn::Module {
  SparseNetImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 8).sparse(true)));
    hidden = register_module("hidden", torch::nn::Linear(8, 16));
    out = register_module("out", torch::nn::Linear(16, 10));
  }
  at::Tensor forward(const at::Tensor& x, int) {
    const auto ids = (x.flatten(1).narrow(1, 0, 6).abs() * 10).to(at::kLong).clamp(0, 49);
    return out->forward(at::relu(hidden->forward(table->forward(ids).mean(1))));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(SparseNet);

// Parameters of several dtypes and layouts: channels_last convolutions, doubles, complex numbers, a scalar.
struct KindsImpl : torch::nn::Module {
  KindsImpl() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).stride(2)));
    conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).stride(2)));
    conv1->weight.set_data(conv1->weight.contiguous(at::MemoryFormat::ChannelsLast));
    conv2->weight.set_data(conv2->weight.contiguous(at::MemoryFormat::ChannelsLast));
    phase = register_parameter("phase", at::view_as_complex(at::rand({8, 2})));
    wide = register_module("wide", torch::nn::Linear(8, 12));
    wide->to(at::kDouble);
    scale = register_parameter("scale", at::ones({}));
    out = register_module("out", torch::nn::Linear(12, 10));
  }
  at::Tensor forward(const at::Tensor& x, int) {
    auto h = at::relu(conv2->forward(at::relu(conv1->forward(x.contiguous(at::MemoryFormat::ChannelsLast)))));
    h = at::view_as_real(h.mean({2, 3}) * phase).sum(2) * scale;
    return out->forward(at::relu(wide->forward(h.to(at::kDouble))).to(at::kFloat));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear wide{nullptr}, out{nullptr};
  at::Tensor phase, scale;
};
TORCH_MODULE(Kinds);

// One block used several times, recomputed or not.
struct ReuseImpl : torch::nn::Module {
  explicit ReuseImpl(std::string checkpoint) : checkpoint_(std::move(checkpoint)) {
    input = register_module("input", torch::nn::Linear(784, 24));
    block = register_module("block", torch::nn::Linear(24, 24));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    out = register_module("out", torch::nn::Linear(24, 10));
  }
  at::Tensor forward(const at::Tensor& x, int) {
    auto h = at::relu(input->forward(x.flatten(1)));
    const auto once = [this](const at::Tensor& y) { return dropout->forward(at::tanh(block->forward(y))); };
    for (int i = 0; i < 3; ++i) {
      h = checkpoint_ == "none" ? once(h)
                                : checkpoint({.use_reentrant = checkpoint_ == "reentrant"}, once, h);
    }
    return out->forward(h);
  }
  torch::nn::Linear input{nullptr}, block{nullptr}, out{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  std::string checkpoint_;
};
TORCH_MODULE(Reuse);

}  // namespace lockstep::testing
