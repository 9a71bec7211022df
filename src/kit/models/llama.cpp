// SPDX-License-Identifier: BSD-3-Clause
#include <torch/nn/init.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <lockstep/models/language.h>

#include "base/throw_error.h"
#include "models/language_model.h"
#include "models/parts.h"

namespace lockstep::models {
namespace {

using torch::nn::Linear;

std::int64_t head_dim_of(const LlamaOptions& options) {
  return options.head_dim.value_or(options.hidden_size / options.num_attention_heads);
}

std::int64_t key_heads_of(const LlamaOptions& options) {
  return options.num_key_value_heads.value_or(options.num_attention_heads);
}

void check_llama(const LlamaOptions& options) {
  const auto refuse = [](const std::string& what) { throw_error<ArgumentError>("Llama: {}", what); };
  const auto heads = options.num_attention_heads;
  if (heads < 1 || options.hidden_size % heads != 0) {
    refuse(fmt::format("hidden_size = {} is not a multiple of num_attention_heads = {}", options.hidden_size,
                       heads));
  }
  if (key_heads_of(options) < 1 || heads % key_heads_of(options) != 0) {
    refuse(fmt::format("num_attention_heads = {} is not a multiple of num_key_value_heads = {}", heads,
                       key_heads_of(options)));
  }
  if (head_dim_of(options) < 2 || head_dim_of(options) % 2 != 0)
    refuse(fmt::format("head_dim = {}; rotary embeddings need an even one", head_dim_of(options)));
}

// [batch or 1, length, head_dim] each
struct Rotation {
  at::Tensor cos, sin;
};

Rotation rotation_of(const at::Tensor& positions, const LlamaOptions& options, const at::Tensor& like) {
  const auto numbers = like.options().dtype(at::kFloat).requires_grad(false);
  const auto dim = head_dim_of(options);
  const auto frequencies =
      at::pow(options.rope_theta, at::arange(0, dim, 2, numbers) / static_cast<double>(dim)).reciprocal();
  const auto angles = positions.to(at::kFloat).unsqueeze(-1) * frequencies;
  const auto both = at::cat({angles, angles}, -1);
  return {both.cos().to(like.scalar_type()), both.sin().to(like.scalar_type())};
}

// x: [batch, heads, length, head_dim]
at::Tensor rotated(const at::Tensor& x, const Rotation& rotation) {
  const auto halves = x.chunk(2, -1);
  return x * rotation.cos.unsqueeze(1) + at::cat({-halves[1], halves[0]}, -1) * rotation.sin.unsqueeze(1);
}

class LlamaRMSNormImpl : public Part<LlamaRMSNormImpl, LlamaOptions> {
 public:
  explicit LlamaRMSNormImpl(const LlamaOptions& options) : Part("LlamaRMSNorm", options) { reset(); }

  void reset() override { weight_ = register_parameter("weight", torch::ones({options_.hidden_size})); }
  void pretty_print(std::ostream& stream) const override {
    stream << fmt::format("LlamaRMSNorm(({},), eps={})", options_.hidden_size, options_.rms_norm_eps);
  }
  // In fp32, whatever the dtype.
  at::Tensor forward(const at::Tensor& input) const {
    const auto x = input.to(at::kFloat);
    const auto scale = at::rsqrt(x.pow(2).mean(-1, true) + options_.rms_norm_eps);
    return weight_ * (x * scale).to(input.scalar_type());
  }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(LlamaRMSNorm);

Linear projection(std::int64_t in, std::int64_t out, bool bias) {
  return Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

class LlamaAttentionImpl : public Part<LlamaAttentionImpl, LlamaOptions> {
 public:
  LlamaAttentionImpl(const LlamaOptions& options, std::size_t layer_idx)
      : Part("LlamaAttention", options), layer_idx_(layer_idx) {
    reset();
  }

  void reset() override {
    const auto width = options_.hidden_size;
    const auto queries = options_.num_attention_heads * head_dim_of(options_);
    const auto keys = key_heads_of(options_) * head_dim_of(options_);
    const bool bias = options_.attention_bias;
    q_proj_ = register_module("q_proj", projection(width, queries, bias));
    k_proj_ = register_module("k_proj", projection(width, keys, bias));
    v_proj_ = register_module("v_proj", projection(width, keys, bias));
    o_proj_ = register_module("o_proj", projection(queries, width, bias));
    attention_dropout_ = register_module("attention_dropout", torch::nn::Dropout(options_.attention_dropout));
  }

  at::Tensor forward(const at::Tensor& x, const Rotation& rotation, DynamicCache* cache) {
    const auto heads = [&](const Linear& layer) { return heads_of(linear(layer, x)).transpose(1, 2); };
    const auto queries = rotated(heads(q_proj_), rotation);
    auto keys = rotated(heads(k_proj_), rotation);
    auto values = heads(v_proj_);
    if (cache != nullptr) std::tie(keys, values) = cache->update(keys, values, layer_idx_);
    const auto dropout = is_training() ? attention_dropout_->options.p() : 0;
    const auto y = causal_attention(queries, keys, values, dropout, options_.attn_implementation);
    return linear(o_proj_, y.transpose(1, 2).flatten(2));
  }

 private:
  // All heads of a projection, or this rank's where tensor parallelism cuts it.
  at::Tensor heads_of(const at::Tensor& projected) const {
    const auto dim = head_dim_of(options_);
    if (projected.size(-1) % dim != 0) {
      throw_error<ArgumentError>(
          "Llama: a projection of attention has {} features on this rank, which is no multiple of head_dim = "
          "{}; tensor parallel ranks must divide num_attention_heads = {} and num_key_value_heads = {}",
          projected.size(-1), dim, options_.num_attention_heads, key_heads_of(options_));
    }
    return projected.view({projected.size(0), projected.size(1), -1, dim});
  }

  std::size_t layer_idx_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  torch::nn::Dropout attention_dropout_{nullptr};  // a module, so that tensor parallel plans can name it
};
TORCH_MODULE(LlamaAttention);

class LlamaMLPImpl : public Part<LlamaMLPImpl, LlamaOptions> {
 public:
  explicit LlamaMLPImpl(const LlamaOptions& options) : Part("LlamaMLP", options) { reset(); }

  void reset() override {
    const auto [width, inner] = std::pair(options_.hidden_size, options_.intermediate_size);
    gate_proj_ = register_module("gate_proj", projection(width, inner, options_.mlp_bias));
    up_proj_ = register_module("up_proj", projection(width, inner, options_.mlp_bias));
    down_proj_ = register_module("down_proj", projection(inner, width, options_.mlp_bias));
  }

  at::Tensor forward(const at::Tensor& x) {
    return linear(down_proj_, at::silu(linear(gate_proj_, x)) * linear(up_proj_, x));
  }

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
TORCH_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public Part<LlamaDecoderLayerImpl, LlamaOptions> {
 public:
  LlamaDecoderLayerImpl(const LlamaOptions& options, std::size_t layer_idx)
      : Part("LlamaDecoderLayer", options), layer_idx_(layer_idx) {
    reset();
  }

  void reset() override {
    self_attn_ = register_module("self_attn", LlamaAttention(options_, layer_idx_));
    mlp_ = register_module("mlp", LlamaMLP(options_));
    input_layernorm_ = register_module("input_layernorm", LlamaRMSNorm(options_));
    post_attention_layernorm_ = register_module("post_attention_layernorm", LlamaRMSNorm(options_));
  }

  at::Tensor forward(const at::Tensor& x, const Rotation& rotation, DynamicCache* cache) {
    const auto y = x + self_attn_->forward(input_layernorm_->forward(x), rotation, cache);
    return y + mlp_->forward(post_attention_layernorm_->forward(y));
  }

 private:
  std::size_t layer_idx_;
  LlamaAttention self_attn_{nullptr};
  LlamaMLP mlp_{nullptr};
  LlamaRMSNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

void initialize_llama(torch::nn::Module& net, double std) {
  namespace init = torch::nn::init;
  net.apply([std](torch::nn::Module& module) {
    if (auto* embedding = module.as<torch::nn::Embedding>()) init::normal_(embedding->weight, 0, std);
    auto* layer = module.as<Linear>();
    if (layer == nullptr) return;
    init::normal_(layer->weight, 0, std);
    if (layer->bias.defined()) init::zeros_(layer->bias);
  });
}

}  // namespace

class LlamaModelImpl : public Part<LlamaModelImpl, LlamaOptions> {
 public:
  explicit LlamaModelImpl(const LlamaOptions& options) : Part("LlamaModel", options) { reset(); }
  LlamaModelImpl(const LlamaModelImpl& whole, const StageLayers& part)
      : Part("LlamaModel", whole.options_), stage(part) {
    if (part.is_first) embed_tokens = register_module("embed_tokens", whole.embed_tokens);
    layers_ = register_module("layers", part.of(whole.layers_));
    if (part.is_last) norm_ = register_module("norm", whole.norm_);
  }

  void reset() override {
    embed_tokens =
        register_module("embed_tokens", torch::nn::Embedding(options_.vocab_size, options_.hidden_size));
    layers_ = register_module("layers", torch::nn::ModuleDict());
    for (std::int64_t i = 0; i < options_.num_hidden_layers; ++i)
      layers_->update({{std::to_string(i), LlamaDecoderLayer(options_, static_cast<std::size_t>(i)).ptr()}});
    norm_ = register_module("norm", LlamaRMSNorm(options_));
    initialize_llama(*this, options_.initializer_range);
  }

  at::Tensor forward(const at::Tensor& input, DynamicCache* cache, const at::Tensor& position_ids) {
    check_input("Llama", input, cache, stage);
    auto x = embed_tokens ? embed_tokens->forward(input) : input;
    const auto seen = cache == nullptr ? 0 : cache->get_seq_length();
    const auto rotation = rotation_of(positions_of(input, seen, position_ids, "Llama"), options_, x);
    for (const auto& layer : *layers_)
      x = layer.value()->as<LlamaDecoderLayer>()->forward(x, rotation, cache);
    return norm_ ? norm_->forward(x) : x;
  }

  std::optional<StageLayers> stage;            // nullopt: the whole model
  torch::nn::Embedding embed_tokens{nullptr};  // of the first stage

 private:
  torch::nn::ModuleDict layers_{nullptr};
  LlamaRMSNorm norm_{nullptr};
};

LlamaImpl::LlamaImpl(const LlamaOptions& options) : Cloneable("Llama"), options_(options) {
  check_llama(options);
  check_dropout("Llama", "attention_dropout", options.attention_dropout, options.attn_implementation);
  reset();
}

void LlamaImpl::reset() {
  model = register_module("model", std::make_shared<LlamaModelImpl>(options_));
  lm_head =
      register_module("lm_head", std::make_shared<LMHeadImpl>(options_.hidden_size, options_.vocab_size));
  torch::nn::init::normal_(lm_head->weight, 0, options_.initializer_range);
  if (options_.tie_word_embeddings) lm_head->tie(model->embed_tokens->weight);
}

std::shared_ptr<torch::nn::Module> LlamaImpl::clone(const std::optional<torch::Device>& device) const {
  auto copy = std::dynamic_pointer_cast<LlamaImpl>(Cloneable::clone(device));
  if (options_.tie_word_embeddings) copy->lm_head->tie(copy->model->embed_tokens->weight);
  return copy;
}

at::Tensor LlamaImpl::forward(const at::Tensor& input_ids, DynamicCache* past_key_values,
                              const at::Tensor& position_ids) {
  const auto x = model->forward(input_ids, past_key_values, position_ids);
  return lm_head ? lm_head->forward(x) : x;
}

LlamaImpl::LlamaImpl(const LlamaImpl& whole, int stage_index, int num_stages)
    : Cloneable("Llama"), options_(whole.options_) {
  const StageLayers stage("Llama", stage_index, num_stages, options_.num_hidden_layers);
  model = register_module("model", std::make_shared<LlamaModelImpl>(*whole.model, stage));
  if (stage.is_last) lm_head = register_module("lm_head", whole.lm_head);
}

std::shared_ptr<LlamaImpl> LlamaImpl::pipeline_stage(int stage_index, int num_stages) const {
  return std::shared_ptr<LlamaImpl>(new LlamaImpl(*this, stage_index, num_stages));
}

at::Tensor LlamaImpl::generate(const at::Tensor& input_ids, const GenerateOptions& options) {
  check_is_whole("Llama", model->stage);
  return generate_tokens(
      [this](const at::Tensor& ids, DynamicCache* cache) {
        return lm_head->forward(model->forward(ids, cache, {}).select(1, -1));
      },
      input_ids, options);
}

std::vector<at::Tensor> LlamaImpl::parameters(bool recurse) const {
  return named_parameters(recurse).values();
}

torch::OrderedDict<std::string, at::Tensor> LlamaImpl::named_parameters(bool recurse) const {
  return distinct(Module::named_parameters(recurse));
}

}  // namespace lockstep::models
