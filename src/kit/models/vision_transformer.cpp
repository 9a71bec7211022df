// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <utility>

#include <torch/nn/init.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/normalization.h>

#include <lockstep/models/vision.h>

#include "base/throw_error.h"
#include "device/libtorch_versions.h"
#include "models/parts.h"

namespace lockstep::models {
namespace {

using torch::nn::Dropout;
using torch::nn::LayerNorm;
using torch::nn::Linear;
namespace init = torch::nn::init;

LayerNorm norm_of(std::int64_t width) { return LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-6)); }

// torch.nn.MultiheadAttention of a sequence with itself.
class SelfAttentionImpl : public Part<SelfAttentionImpl, VisionTransformerOptions> {
 public:
  explicit SelfAttentionImpl(const VisionTransformerOptions& options) : Part("MultiheadAttention", options) {
    reset();
  }

  void reset() override {
    const auto width = options_.hidden_dim;
    out_proj_ = register_module("out_proj", Linear(width, width));
    in_proj_weight_ =
        register_parameter("in_proj_weight", init::xavier_uniform_(torch::empty({3 * width, width})));
    in_proj_bias_ = register_parameter("in_proj_bias", torch::zeros({3 * width}));
    init::zeros_(out_proj_->bias);
  }

  // [batch, length, width]
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = at::linear(x, in_proj_weight_, in_proj_bias_)
                           .view({x.size(0), x.size(1), 3, options_.num_heads, -1})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();
    const auto dropout = is_training() ? options_.attention_dropout : 0;
    const auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, dropout);
    // Python's layout, with the batch inside, in which the dropout that follows draws.
    return linear(out_proj_, y.permute({2, 0, 1, 3}).reshape({x.size(1), x.size(0), -1})).transpose(0, 1);
  }

 private:
  at::Tensor in_proj_weight_, in_proj_bias_;
  Linear out_proj_{nullptr};
};
TORCH_MODULE(SelfAttention);

class MLPBlockImpl : public Part<MLPBlockImpl, VisionTransformerOptions> {
 public:
  explicit MLPBlockImpl(const VisionTransformerOptions& options) : Part("MLPBlock", options) { reset(); }

  void reset() override {
    up_ = register_module("0", Linear(options_.hidden_dim, options_.mlp_dim));
    register_module("1", torch::nn::GELU());
    dropout_ = register_module("2", Dropout(options_.dropout));
    down_ = register_module("3", Linear(options_.mlp_dim, options_.hidden_dim));
    register_module("4", dropout_);
    for (auto* layer : {&up_, &down_}) {
      init::xavier_uniform_((*layer)->weight);
      init::normal_((*layer)->bias, 0, 1e-6);
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    return dropout_->forward(linear(down_, dropout_->forward(at::gelu(linear(up_, x)))));
  }

 private:
  Linear up_{nullptr}, down_{nullptr};
  Dropout dropout_{nullptr};
};
TORCH_MODULE(MLPBlock);

class EncoderBlockImpl : public Part<EncoderBlockImpl, VisionTransformerOptions> {
 public:
  explicit EncoderBlockImpl(const VisionTransformerOptions& options) : Part("EncoderBlock", options) {
    reset();
  }

  void reset() override {
    ln_1_ = register_module("ln_1", norm_of(options_.hidden_dim));
    self_attention_ = register_module("self_attention", SelfAttention(options_));
    dropout_ = register_module("dropout", Dropout(options_.dropout));
    ln_2_ = register_module("ln_2", norm_of(options_.hidden_dim));
    mlp_ = register_module("mlp", MLPBlock(options_));
  }

  at::Tensor forward(const at::Tensor& input) {
    const auto x = dropout_->forward(self_attention_->forward(ln_1_->forward(input))) + input;
    return x + mlp_->forward(ln_2_->forward(x));
  }

 private:
  LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  SelfAttention self_attention_{nullptr};
  Dropout dropout_{nullptr};
  MLPBlock mlp_{nullptr};
};
TORCH_MODULE(EncoderBlock);

std::int64_t patches(const VisionTransformerOptions& options) {
  const auto side = options.image_size / options.patch_size;
  return side * side;
}

void check_sizes(const VisionTransformerOptions& options) {
  const auto check = [](const char* name, std::int64_t size, const char* other, std::int64_t divisor) {
    if (divisor > 0 && size > 0 && size % divisor == 0) return;
    throw_error<ArgumentError>("VisionTransformer: {} = {} is not a multiple of {} = {}", name, size, other,
                               divisor);
  };
  check("image_size", options.image_size, "patch_size", options.patch_size);
  check("hidden_dim", options.hidden_dim, "num_heads", options.num_heads);
}

// A normal distribution without what is farther than 2 from 0.
void truncated_normal(at::Tensor weight, double deviation) {
  const at::NoGradGuard no_grad;
  if constexpr (!libtorch::kTruncNormalDrawsAgain) {
    const double limit = std::erf(2 / deviation / std::sqrt(2.0));
    weight.uniform_(-limit, limit).erfinv_().mul_(deviation * std::sqrt(2.0)).clamp_(-2, 2);
    return;
  }
  weight.normal_(0, deviation);
  for (;;) {
    const auto outside = weight.abs() > 2;
    if (!outside.any().item<bool>()) return;
    weight.copy_(at::where(outside, at::empty_like(weight).normal_(0, deviation), weight));
  }
}

void initialize_from_inputs(Linear& layer) {
  truncated_normal(layer->weight, std::sqrt(1.0 / static_cast<double>(layer->weight.size(1))));
  init::zeros_(layer->bias);
}

}  // namespace

class VisionTransformerEncoderImpl : public Part<VisionTransformerEncoderImpl, VisionTransformerOptions> {
 public:
  explicit VisionTransformerEncoderImpl(const VisionTransformerOptions& options) : Part("Encoder", options) {
    reset();
  }

  void reset() override {
    const auto length = patches(options_) + 1;
    pos_embedding_ = register_parameter(
        "pos_embedding", init::normal_(torch::empty({1, length, options_.hidden_dim}), 0, 0.02));
    dropout_ = register_module("dropout", Dropout(options_.dropout));
    layers_ = register_module("layers", torch::nn::ModuleDict());
    for (std::int64_t i = 0; i < options_.num_layers; ++i)
      layers_->update({{fmt::format("encoder_layer_{}", i), EncoderBlock(options_).ptr()}});
    ln_ = register_module("ln", norm_of(options_.hidden_dim));
  }

  at::Tensor forward(const at::Tensor& input) {
    auto x = dropout_->forward(input + pos_embedding_);
    for (const auto& layer : *layers_) x = layer.value()->as<EncoderBlock>()->forward(x);
    return ln_->forward(x);
  }

 private:
  at::Tensor pos_embedding_;
  Dropout dropout_{nullptr};
  torch::nn::ModuleDict layers_{nullptr};
  LayerNorm ln_{nullptr};
};

VisionTransformerHeadsImpl::VisionTransformerHeadsImpl(const VisionTransformerOptions& options)
    : Cloneable("VisionTransformerHeads"), options_(options) {
  reset();
}

void VisionTransformerHeadsImpl::reset() {
  const auto width = options_.representation_size.value_or(options_.hidden_dim);
  if (options_.representation_size) {
    pre_logits = register_module("pre_logits", Linear(options_.hidden_dim, width));
    act = register_module("act", torch::nn::Tanh());
  }
  head.begin(*this, "head", Linear(width, options_.num_classes));
}

at::Tensor VisionTransformerHeadsImpl::forward(const at::Tensor& class_token) {
  return head->forward(pre_logits ? act->forward(pre_logits->forward(class_token)) : class_token);
}

VisionTransformerImpl::VisionTransformerImpl(const VisionTransformerOptions& options)
    : Cloneable("VisionTransformer"), options_(options) {
  check_sizes(options);
  reset();
}

void VisionTransformerImpl::reset() {
  const auto& [weights, image_size, patch_size, num_layers, num_heads, hidden_dim, mlp_dim, dropout,
               attention_dropout, num_classes, representation_size] = options_;
  conv_proj.begin(*this, "conv_proj",
                  torch::nn::Conv2d(torch::nn::Conv2dOptions(3, hidden_dim, patch_size).stride(patch_size)));
  class_token = register_parameter("class_token", torch::zeros({1, 1, hidden_dim}));
  encoder = register_module("encoder", std::make_shared<VisionTransformerEncoderImpl>(options_));
  heads.begin(*this, "heads", VisionTransformerHeads(options_));
  truncated_normal(conv_proj->weight, std::sqrt(1.0 / static_cast<double>(3 * patch_size * patch_size)));
  init::zeros_(conv_proj->bias);
  if (heads->pre_logits) initialize_from_inputs(heads->pre_logits);
  init::zeros_(heads->head->weight);
  init::zeros_(heads->head->bias);
}

at::Tensor VisionTransformerImpl::forward(const at::Tensor& images) {
  const auto size = options_.image_size;
  if (images.dim() != 4 || images.size(2) != size || images.size(3) != size) {
    throw_error<ArgumentError>("VisionTransformer: expected images [batch, 3, {0}, {0}], got {1}", size,
                               c10::str(images.sizes()));
  }
  const auto batch = images.size(0);
  const auto tokens = conv_proj->forward(images).reshape({batch, options_.hidden_dim, -1}).permute({0, 2, 1});
  const auto x = encoder->forward(at::cat({class_token.expand({batch, -1, -1}), tokens}, 1));
  return heads->forward(x.select(1, 0));
}

namespace {

// A field that the user did not set has the value of ViT-B/16.
VisionTransformer of_sizes(const char* name, VisionTransformerOptions options,
                           const VisionTransformerOptions& sizes) {
  const VisionTransformerOptions defaults;
  const auto set = [&](const char* field, std::int64_t VisionTransformerOptions::*member) {
    const auto given = std::exchange(options.*member, sizes.*member);
    if (given == sizes.*member || given == defaults.*member) return;
    throw_error<ArgumentError>("{}: {} is {}, not {}; use VisionTransformer for other sizes", name, field,
                               sizes.*member, given);
  };
  set("patch_size", &VisionTransformerOptions::patch_size);
  set("num_layers", &VisionTransformerOptions::num_layers);
  set("num_heads", &VisionTransformerOptions::num_heads);
  set("hidden_dim", &VisionTransformerOptions::hidden_dim);
  set("mlp_dim", &VisionTransformerOptions::mlp_dim);
  return VisionTransformer(options);
}

}  // namespace

VisionTransformer vit_b_16(const VisionTransformerOptions& options) {
  return of_sizes("vit_b_16", options, {});
}

VisionTransformer vit_tiny_16(const VisionTransformerOptions& options) {
  return of_sizes("vit_tiny_16", options, {.num_heads = 3, .hidden_dim = 192, .mlp_dim = 768});
}

}  // namespace lockstep::models
