// SPDX-License-Identifier: BSD-3-Clause
#include "models/language_model.h"

#include <limits>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include "base/throw_error.h"

namespace lockstep::models {
namespace {

constexpr std::int64_t kDefaultTopK = 50;

void check_generate(const at::Tensor& input_ids, const GenerateOptions& options) {
  const auto refuse = [](const std::string& what) { throw_error<ArgumentError>("generate: {}", what); };
  if (input_ids.dim() != 2 || input_ids.size(1) == 0 || input_ids.scalar_type() != at::kLong)
    refuse("input_ids must be tokens [batch, length] of int64, with at least one token each");
  if (options.max_new_tokens < 1)
    refuse(fmt::format("max_new_tokens = {}; give at least 1", options.max_new_tokens));
  if (!options.do_sample && (options.temperature || options.top_k || options.generator))
    refuse("temperature, top_k and generator have no effect without do_sample = true");
  if (options.temperature && !(*options.temperature > 0))
    refuse(fmt::format("temperature = {}; give more than 0, or do_sample = false for the most likely tokens",
                       *options.temperature));
  if (options.top_k && *options.top_k < 0)
    refuse(fmt::format("top_k = {}; give 0 for all tokens, or more", *options.top_k));
}

at::Tensor sampled(at::Tensor logits, const GenerateOptions& options) {
  logits = logits / options.temperature.value_or(1);
  const auto k = std::min(options.top_k.value_or(kDefaultTopK), logits.size(-1));
  if (k > 0) {
    const auto smallest = std::get<0>(logits.topk(k, -1)).slice(-1, k - 1);
    logits = logits.masked_fill(logits < smallest, -std::numeric_limits<double>::infinity());
  }
  return at::multinomial(logits.softmax(-1), 1, false, options.generator);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> DynamicCache::update(const at::Tensor& keys, const at::Tensor& values,
                                                       std::size_t layer_idx) {
  if (layer_idx >= layers_.size()) return layers_.emplace_back(keys, values);
  auto& [all_keys, all_values] = layers_[layer_idx];
  all_keys = at::cat({all_keys, keys}, 2);
  all_values = at::cat({all_values, values}, 2);
  return layers_[layer_idx];
}

at::Tensor generate_tokens(const NextLogits& next_logits, const at::Tensor& input_ids,
                           const GenerateOptions& options) {
  check_generate(input_ids, options);
  const at::NoGradGuard no_grad;
  DynamicCache cache;
  auto tokens = input_ids;
  auto unseen = input_ids;
  auto finished = at::zeros({input_ids.size(0), 1}, input_ids.options().dtype(at::kBool));
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto logits = options.use_cache ? next_logits(unseen, &cache) : next_logits(tokens, nullptr);
    auto next = options.do_sample ? sampled(logits.to(at::kFloat), options) : logits.argmax(-1, true);
    if (options.eos_token_id) {
      next = next.masked_fill(finished, *options.eos_token_id);
      finished = finished | (next == *options.eos_token_id);
    }
    tokens = at::cat({tokens, next}, 1);
    unseen = next;
    if (options.eos_token_id && finished.all().item<bool>()) break;
  }
  return tokens;
}

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            double dropout, const Attention& given) {
  const auto length = queries.size(2);
  const auto seen = keys.size(2) - length;
  if (given && seen > 0) {
    throw_error<ArgumentError>(
        "an attn_implementation attends to the tokens of one call, but the cache has {} earlier ones; call "
        "generate() with use_cache = false, or forward() without a cache",
        seen);
  }
  if (given) return given(queries, keys, values);
  const bool grouped = queries.size(1) != keys.size(1);
  if (length == 1 || seen == 0) {
    return at::scaled_dot_product_attention(queries, keys, values, {}, dropout, length > 1, std::nullopt,
                                            grouped);
  }
  const auto mask = at::ones({length, keys.size(2)}, queries.options().dtype(at::kBool)).tril(seen);
  return at::scaled_dot_product_attention(queries, keys, values, mask, dropout, false, std::nullopt, grouped);
}

void check_dropout(const char* model, const char* option, double dropout, const Attention& given) {
  if (!given || dropout == 0) return;
  throw_error<ArgumentError>("{}: {} = {}, but an attn_implementation has no dropout; set it to 0", model,
                             option, dropout);
}

at::Tensor positions_of(const at::Tensor& input, std::int64_t seen, const at::Tensor& position_ids,
                        const char* model) {
  const auto length = input.size(1);
  if (!position_ids.defined())
    return at::arange(seen, seen + length, input.options().dtype(at::kLong)).unsqueeze(0);
  if (position_ids.dim() == 2 && position_ids.size(1) == length &&
      (position_ids.size(0) == 1 || position_ids.size(0) == input.size(0)))
    return position_ids;
  throw_error<ArgumentError>("{}: position_ids of shape [{}] for tokens of shape [{}]", model,
                             fmt::join(position_ids.sizes(), ", "),
                             fmt::join(input.sizes().slice(0, 2), ", "));
}

StageLayers::StageLayers(const char* model, int stage_index, int num_stages, std::int64_t layers)
    : first(0), last(layers), is_first(stage_index == 0), is_last(stage_index + 1 == num_stages) {
  if (stage_index < 0 || stage_index >= num_stages || num_stages > layers) {
    throw_error<ArgumentError>("{}: stage {} of {} stages, with {} layers; each stage has at least one",
                               model, stage_index, num_stages, layers);
  }
  first = layers * stage_index / num_stages;
  last = layers * (stage_index + 1) / num_stages;
}

torch::nn::ModuleDict StageLayers::of(const torch::nn::ModuleDict& whole) const {
  torch::nn::ModuleDict layers;
  for (auto i = first; i < last; ++i) {
    const auto name = std::to_string(i);
    layers->update({{name, (*whole)[name]}});
  }
  return layers;
}

void check_input(const char* model, const at::Tensor& input, const DynamicCache* cache,
                 const std::optional<StageLayers>& stage) {
  const bool takes_tokens = !stage || stage->is_first;
  if (input.dim() != (takes_tokens ? 2 : 3)) {
    throw_error<ArgumentError>("{}: expected {}, got a tensor of {} dimensions", model,
                               takes_tokens ? "tokens [batch, length]"
                                            : "the hidden states [batch, length, width] of the stage before",
                               input.dim());
  }
  if (cache != nullptr) check_is_whole(model, stage);
}

void check_is_whole(const char* model, const std::optional<StageLayers>& stage) {
  if (!stage) return;
  throw_error<ArgumentError>("{}: a stage of a pipeline takes no cache and does not generate()", model);
}

}  // namespace lockstep::models
