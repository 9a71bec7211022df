// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

/// Causal language models with the parameter names of the `transformers` package, so state dicts load both
/// ways. A model made after torch::manual_seed(s) has the weights that Python's has after
/// torch.manual_seed(s).
namespace lockstep::models {

/// The keys and values of the tokens that a model has seen, for one batch. Not thread-safe. Python:
/// transformers.DynamicCache.
class DynamicCache {
 public:
  /// The number of tokens seen.
  std::int64_t get_seq_length() const { return layers_.empty() ? 0 : layers_.front().first.size(2); }

  /// Appends keys and values [batch, heads, length, head_dim] of layer `layer_idx`; returns all of them.
  std::pair<at::Tensor, at::Tensor> update(const at::Tensor& keys, const at::Tensor& values,
                                           std::size_t layer_idx);

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> layers_;
};

/// PyTorch: the arguments of transformers' `generate`.
struct GenerateOptions {
  std::int64_t max_new_tokens = 20;  ///< greatest number of tokens that are added
  /// Draws tokens; otherwise takes the most likely one.
  bool do_sample = false;
  /// With do_sample: logits are divided by it. Default: 1.
  std::optional<double> temperature = {};
  /// With do_sample: draws among the k most likely tokens; 0: among all. Default: 50.
  std::optional<std::int64_t> top_k = {};
  /// A sequence ends with this token and is padded with it. Generation ends when all sequences have.
  std::optional<std::int64_t> eos_token_id = {};
  /// Computes each token once; otherwise the whole sequence for each new token.
  bool use_cache = true;
  /// Default: the default generator of the device.
  std::optional<at::Generator> generator = {};
};

/// Causal attention of queries [batch, heads, length, head_dim] to keys and values [batch, key heads, length,
/// head_dim]: as the queries. With cached keys of earlier tokens the model throws ArgumentError instead.
/// PyTorch: a function of transformers.AttentionInterface.
using Attention =
    std::function<at::Tensor(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values)>;

/// PyTorch: the fields of transformers.GPT2Config.
struct GPT2Options {
  std::int64_t vocab_size = 50257;           ///< tokens of the vocabulary
  std::int64_t n_positions = 1024;           ///< greatest length of a sequence
  std::int64_t n_embd = 768;                 ///< a multiple of n_head
  std::int64_t n_layer = 12;                 ///< blocks
  std::int64_t n_head = 12;                  ///< heads of each attention
  std::optional<std::int64_t> n_inner = {};  ///< default: 4 * n_embd
  double resid_pdrop = 0.1;                  ///< dropout of what blocks add
  double embd_pdrop = 0.1;                   ///< dropout of the embeddings
  double attn_pdrop = 0.1;                   ///< dropout of the weights of attention
  double layer_norm_epsilon = 1e-5;          ///< added to the variance
  double initializer_range = 0.02;           ///< standard deviation of the first weights
  /// Default: LibTorch's. Another has no dropout: attn_pdrop is 0.
  Attention attn_implementation = {};
};
using GPT2Config = GPT2Options;  ///< transformers' name

class GPT2ModelImpl;
class LMHeadImpl;

class GPT2Impl : public torch::nn::Cloneable<GPT2Impl> {
 public:
  /// Throws ArgumentError if n_embd is not a multiple of n_head, or attention is to have dropout and cannot.
  explicit GPT2Impl(const GPT2Options& options = {});

  /// Tokens [batch, length] of int64 -> logits [batch, length, vocab_size]. With `past_key_values`,
  /// `input_ids` continue the tokens that it has seen, and are added to it. `position_ids`: the place of each
  /// token in its sequence, int64 [batch or 1, length]; default: they follow one another. Throws
  /// ArgumentError for more than n_positions tokens.
  at::Tensor forward(const at::Tensor& input_ids, DynamicCache* past_key_values = nullptr,
                     const at::Tensor& position_ids = {});

  /// Tokens [batch, length] followed by at most max_new_tokens others. Records no gradients; call eval()
  /// before. Throws ArgumentError for options that exclude one another and for more than n_positions tokens.
  at::Tensor generate(const at::Tensor& input_ids, const GenerateOptions& options = {});

  /// The stage `stage_index` of a pipeline: some layers, in the first stage the embeddings too, and in the
  /// last one the final norm and lm_head, which is null in the others. It shares them with this model, under
  /// their names in it. Its forward() takes tokens in the first stage, else what the stage before returns,
  /// and returns hidden states [batch, length, n_embd] before the last stage. Stages take no cache and are
  /// not cloned. The weight that the first and the last stage have must be one of their `tied_parameters`;
  /// the last one calls it lm_head.weight. Throws ArgumentError for more stages than layers. PyTorch: a stage
  /// of `pipeline()` of torch.distributed.
  std::shared_ptr<GPT2Impl> pipeline_stage(int stage_index, int num_stages) const;

  void reset() override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Each once, as in Python: lm_head.weight is transformer.wte.weight.
  std::vector<at::Tensor> parameters(bool recurse = true) const;
  /// The parameters by Python's names, each once.
  torch::OrderedDict<std::string, at::Tensor> named_parameters(bool recurse = true) const;

  std::shared_ptr<GPT2ModelImpl> transformer;  ///< embeddings and blocks
  std::shared_ptr<LMHeadImpl> lm_head;         ///< the projection to the vocabulary

 private:
  GPT2Impl(const GPT2Impl& whole, int stage_index, int num_stages);

  GPT2Options options_;
};

/// GPT-2 with tied embeddings. Python: transformers.GPT2LMHeadModel.
TORCH_MODULE(GPT2);

/// PyTorch: the fields of transformers.LlamaConfig, of the 7B model by default.
struct LlamaOptions {
  std::int64_t vocab_size = 32000;         ///< tokens of the vocabulary
  std::int64_t hidden_size = 4096;         ///< width of the model
  std::int64_t intermediate_size = 11008;  ///< width of the hidden layer of a block
  std::int64_t num_hidden_layers = 32;     ///< blocks
  std::int64_t num_attention_heads = 32;   ///< heads of each attention
  /// Heads of keys and values; a divisor of num_attention_heads. Default: num_attention_heads.
  std::optional<std::int64_t> num_key_value_heads = {};
  std::optional<std::int64_t> head_dim = {};  ///< even; default: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6;                 ///< added to the mean square
  double rope_theta = 10000;                  ///< the base of the rotary embedding
  double initializer_range = 0.02;            ///< standard deviation of the first weights
  bool tie_word_embeddings = false;  ///< the projection to the vocabulary uses the embedding's weight
  bool attention_bias = false;       ///< the projections of attention have biases
  double attention_dropout = 0;      ///< dropout of the weights of attention
  bool mlp_bias = false;             ///< the layers of the MLP have biases
  /// Default: LibTorch's. Another has no dropout: attention_dropout is 0.
  Attention attn_implementation = {};
};
using LlamaConfig = LlamaOptions;  ///< transformers' name

class LlamaModelImpl;

class LlamaImpl : public torch::nn::Cloneable<LlamaImpl> {
 public:
  /// Throws ArgumentError for sizes that do not divide, and if attention is to have dropout and cannot.
  explicit LlamaImpl(const LlamaOptions& options = {});

  /// As GPT2Impl::forward(), for any number of tokens.
  at::Tensor forward(const at::Tensor& input_ids, DynamicCache* past_key_values = nullptr,
                     const at::Tensor& position_ids = {});

  /// As GPT2Impl::generate().
  at::Tensor generate(const at::Tensor& input_ids, const GenerateOptions& options = {});

  /// As GPT2Impl::pipeline_stage(). Position ids are those of the tokens, in every stage.
  std::shared_ptr<LlamaImpl> pipeline_stage(int stage_index, int num_stages) const;

  void reset() override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Each once, as in Python, also with tie_word_embeddings.
  std::vector<at::Tensor> parameters(bool recurse = true) const;
  /// The parameters by Python's names, each once.
  torch::OrderedDict<std::string, at::Tensor> named_parameters(bool recurse = true) const;

  std::shared_ptr<LlamaModelImpl> model;  ///< embedding, blocks and norm
  std::shared_ptr<LMHeadImpl> lm_head;    ///< the projection to the vocabulary

 private:
  LlamaImpl(const LlamaImpl& whole, int stage_index, int num_stages);

  LlamaOptions options_;
};

/// A model with rotary embeddings, RMSNorm, grouped-query attention and SwiGLU. Python:
/// transformers.LlamaForCausalLM.
TORCH_MODULE(Llama);

}  // namespace lockstep::models
