// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <lockstep/models/language.h>

#include "base/throw_error.h"
#include "models/language_model.h"
#include "models/parts.h"

namespace lockstep::models {
namespace {

using torch::nn::Dropout;
using torch::nn::init::normal_;

// A linear layer with a transposed weight.
class Conv1DImpl : public torch::nn::Cloneable<Conv1DImpl> {
 public:
  Conv1DImpl(std::int64_t in, std::int64_t out) : Cloneable("Conv1D"), in_(in), out_(out) { reset(); }

  void reset() override {
    weight = register_parameter("weight", normal_(torch::empty({in_, out_}), 0, 0.02));
    bias = register_parameter("bias", torch::zeros({out_}));
  }
  void pretty_print(std::ostream& stream) const override {
    stream << fmt::format("Conv1D(nf={}, nx={})", out_, in_);
  }
  at::Tensor forward(const at::Tensor& x) const {
    auto sizes = x.sizes().vec();
    sizes.back() = out_;
    return at::addmm(bias, x.reshape({-1, in_}), weight).view(sizes);
  }

  at::Tensor weight, bias;

 private:
  std::int64_t in_, out_;
};
TORCH_MODULE(Conv1D);

torch::nn::LayerNorm layer_norm(const GPT2Options& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.n_embd}).eps(options.layer_norm_epsilon));
}

class GPT2AttentionImpl : public Part<GPT2AttentionImpl, GPT2Options> {
 public:
  GPT2AttentionImpl(const GPT2Options& options, std::size_t layer_idx)
      : Part("GPT2Attention", options), layer_idx_(layer_idx) {
    reset();
  }

  void reset() override {
    const auto width = options_.n_embd;
    c_attn = register_module("c_attn", Conv1D(width, 3 * width));
    c_proj = register_module("c_proj", Conv1D(width, width));
    attn_dropout_ = register_module("attn_dropout", Dropout(options_.attn_pdrop));
    resid_dropout_ = register_module("resid_dropout", Dropout(options_.resid_pdrop));
  }

  at::Tensor forward(const at::Tensor& x, DynamicCache* cache) {
    const auto parts = c_attn->forward(x).split(options_.n_embd, 2);
    const auto heads = [&](const at::Tensor& part) {
      return part.view({x.size(0), x.size(1), options_.n_head, -1}).transpose(1, 2);
    };
    auto keys = heads(parts[1]);
    auto values = heads(parts[2]);
    if (cache != nullptr) std::tie(keys, values) = cache->update(keys, values, layer_idx_);
    const auto dropout = is_training() ? attn_dropout_->options.p() : 0;
    const auto y = causal_attention(heads(parts[0]), keys, values, dropout, options_.attn_implementation);
    return resid_dropout_->forward(c_proj->forward(y.transpose(1, 2).reshape(x.sizes())));
  }

  Conv1D c_attn{nullptr}, c_proj{nullptr};

 private:
  std::size_t layer_idx_;
  Dropout attn_dropout_{nullptr}, resid_dropout_{nullptr};
};
TORCH_MODULE(GPT2Attention);

class GPT2MLPImpl : public Part<GPT2MLPImpl, GPT2Options> {
 public:
  explicit GPT2MLPImpl(const GPT2Options& options) : Part("GPT2MLP", options) { reset(); }

  void reset() override {
    const auto inner = options_.n_inner.value_or(4 * options_.n_embd);
    c_fc = register_module("c_fc", Conv1D(options_.n_embd, inner));
    c_proj = register_module("c_proj", Conv1D(inner, options_.n_embd));
    act_ = register_module("act", torch::nn::GELU(torch::nn::GELUOptions().approximate("tanh")));
    dropout_ = register_module("dropout", Dropout(options_.resid_pdrop));
  }

  at::Tensor forward(const at::Tensor& x) {
    return dropout_->forward(c_proj->forward(act_->forward(c_fc->forward(x))));
  }

  Conv1D c_fc{nullptr}, c_proj{nullptr};

 private:
  torch::nn::GELU act_{nullptr};
  Dropout dropout_{nullptr};
};
TORCH_MODULE(GPT2MLP);

class GPT2BlockImpl : public Part<GPT2BlockImpl, GPT2Options> {
 public:
  GPT2BlockImpl(const GPT2Options& options, std::size_t layer_idx)
      : Part("GPT2Block", options), layer_idx_(layer_idx) {
    reset();
  }

  void reset() override {
    ln_1_ = register_module("ln_1", layer_norm(options_));
    attn = register_module("attn", GPT2Attention(options_, layer_idx_));
    ln_2_ = register_module("ln_2", layer_norm(options_));
    mlp = register_module("mlp", GPT2MLP(options_));
  }

  at::Tensor forward(const at::Tensor& x, DynamicCache* cache) {
    const auto y = attn->forward(ln_1_->forward(x), cache) + x;
    return y + mlp->forward(ln_2_->forward(y));
  }

  GPT2Attention attn{nullptr};
  GPT2MLP mlp{nullptr};

 private:
  std::size_t layer_idx_;
  torch::nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
};
TORCH_MODULE(GPT2Block);

}  // namespace

class GPT2ModelImpl : public Part<GPT2ModelImpl, GPT2Options> {
 public:
  explicit GPT2ModelImpl(const GPT2Options& options) : Part("GPT2Model", options) { reset(); }
  GPT2ModelImpl(const GPT2ModelImpl& whole, const StageLayers& part)
      : Part("GPT2Model", whole.options_), stage(part) {
    if (part.is_first) {
      wte = register_module("wte", whole.wte);
      wpe_ = register_module("wpe", whole.wpe_);
      drop_ = register_module("drop", whole.drop_);
    }
    h_ = register_module("h", part.of(whole.h_));
    if (part.is_last) ln_f_ = register_module("ln_f", whole.ln_f_);
  }

  void reset() override {
    using torch::nn::Embedding;
    wte = register_module("wte", Embedding(options_.vocab_size, options_.n_embd));
    wpe_ = register_module("wpe", Embedding(options_.n_positions, options_.n_embd));
    drop_ = register_module("drop", Dropout(options_.embd_pdrop));
    h_ = register_module("h", torch::nn::ModuleDict());
    for (std::int64_t i = 0; i < options_.n_layer; ++i)
      h_->update({{std::to_string(i), GPT2Block(options_, static_cast<std::size_t>(i)).ptr()}});
    ln_f_ = register_module("ln_f", layer_norm(options_));
    initialize();
  }

  at::Tensor forward(const at::Tensor& input, DynamicCache* cache, const at::Tensor& position_ids) {
    check_input("GPT2", input, cache, stage);
    const auto seen = cache == nullptr ? 0 : cache->get_seq_length();
    const auto end = seen + input.size(1);
    if (end > options_.n_positions) {
      throw_error<ArgumentError>(
          "GPT2: a sequence with {} tokens, the cached ones included, for n_positions = {}", end,
          options_.n_positions);
    }
    auto x = wte ? embedded(input, positions_of(input, seen, position_ids, "GPT2")) : input;
    for (const auto& block : *h_) x = block.value()->as<GPT2Block>()->forward(x, cache);
    return ln_f_ ? ln_f_->forward(x) : x;
  }

  std::optional<StageLayers> stage;   // nullopt: the whole model
  torch::nn::Embedding wte{nullptr};  // of the first stage

 private:
  at::Tensor embedded(const at::Tensor& tokens, const at::Tensor& positions) {
    return drop_->forward(wte->forward(tokens) + wpe_->forward(positions));
  }

  // Radford et al., 2019: projections onto the residual path are scaled by its length.
  void initialize() {
    const auto std = options_.initializer_range;
    const auto residual_std = std / std::sqrt(2.0 * static_cast<double>(options_.n_layer));
    normal_(wte->weight, 0, std);
    normal_(wpe_->weight, 0, std);
    for (const auto& each : *h_) {
      auto& block = *each.value()->as<GPT2Block>();
      // Python draws the projections twice, too.
      for (const auto* layer : {&block.attn->c_attn, &block.attn->c_proj}) normal_((*layer)->weight, 0, std);
      normal_(block.attn->c_proj->weight, 0, residual_std);
      for (const auto* layer : {&block.mlp->c_fc, &block.mlp->c_proj}) normal_((*layer)->weight, 0, std);
      normal_(block.mlp->c_proj->weight, 0, residual_std);
    }
  }

  torch::nn::Embedding wpe_{nullptr};
  Dropout drop_{nullptr};
  torch::nn::ModuleDict h_{nullptr};
  torch::nn::LayerNorm ln_f_{nullptr};
};

GPT2Impl::GPT2Impl(const GPT2Options& options) : Cloneable("GPT2"), options_(options) {
  if (options.n_head < 1 || options.n_embd % options.n_head != 0) {
    throw_error<ArgumentError>("GPT2: n_embd = {} is not a multiple of n_head = {}", options.n_embd,
                               options.n_head);
  }
  check_dropout("GPT2", "attn_pdrop", options.attn_pdrop, options.attn_implementation);
  reset();
}

void GPT2Impl::reset() {
  transformer = register_module("transformer", std::make_shared<GPT2ModelImpl>(options_));
  lm_head = register_module("lm_head", std::make_shared<LMHeadImpl>(options_.n_embd, options_.vocab_size));
  normal_(lm_head->weight, 0, options_.initializer_range);  // only to leave the generator as Python does
  lm_head->tie(transformer->wte->weight);
}

std::shared_ptr<torch::nn::Module> GPT2Impl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::dynamic_pointer_cast<GPT2Impl>(Cloneable::clone(device));
  copy->lm_head->tie(copy->transformer->wte->weight);
  return copy;
}

at::Tensor GPT2Impl::forward(const at::Tensor& input_ids, DynamicCache* past_key_values,
                             const at::Tensor& position_ids) {
  const auto x = transformer->forward(input_ids, past_key_values, position_ids);
  return lm_head ? lm_head->forward(x) : x;
}

GPT2Impl::GPT2Impl(const GPT2Impl& whole, int stage_index, int num_stages)
    : Cloneable("GPT2"), options_(whole.options_) {
  const StageLayers stage("GPT2", stage_index, num_stages, options_.n_layer);
  transformer = register_module("transformer", std::make_shared<GPT2ModelImpl>(*whole.transformer, stage));
  if (stage.is_last) lm_head = register_module("lm_head", whole.lm_head);
}

std::shared_ptr<GPT2Impl> GPT2Impl::pipeline_stage(int stage_index, int num_stages) const {
  return std::shared_ptr<GPT2Impl>(new GPT2Impl(*this, stage_index, num_stages));
}

at::Tensor GPT2Impl::generate(const at::Tensor& input_ids, const GenerateOptions& options) {
  check_is_whole("GPT2", transformer->stage);
  if (input_ids.size(-1) + options.max_new_tokens > options_.n_positions) {
    throw_error<ArgumentError>("GPT2: {} tokens and max_new_tokens = {} exceed n_positions = {}",
                               input_ids.size(-1), options.max_new_tokens, options_.n_positions);
  }
  return generate_tokens(
      [this](const at::Tensor& ids, DynamicCache* cache) {
        return lm_head->forward(transformer->forward(ids, cache, {}).select(1, -1));
      },
      input_ids, options);
}

std::vector<at::Tensor> GPT2Impl::parameters(bool recurse) const {
  return named_parameters(recurse).values();
}

torch::OrderedDict<std::string, at::Tensor> GPT2Impl::named_parameters(bool recurse) const {
  return distinct(Module::named_parameters(recurse));
}

}  // namespace lockstep::models
