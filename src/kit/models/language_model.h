// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/models/language.h>

// What the language models have in common.
namespace lockstep::models {

// The output layer of a language model.
class LMHeadImpl : public torch::nn::LinearImpl {
 public:
  LMHeadImpl(std::int64_t in, std::int64_t out) : LinearImpl(torch::nn::LinearOptions(in, out).bias(false)) {}

  at::Tensor forward(const at::Tensor& x) const { return at::linear(x, weight); }

  // Its weight becomes the same tensor as an embedding's.
  void tie(const at::Tensor& embedding) {
    weight = embedding;
    parameters_["weight"] = embedding;
  }
};

// The logits [batch, vocabulary] that follow tokens [batch, length].
using NextLogits = std::function<at::Tensor(const at::Tensor& input_ids, DynamicCache* cache)>;

at::Tensor generate_tokens(const NextLogits& next_logits, const at::Tensor& input_ids,
                           const GenerateOptions& options);

// Queries attend to all tokens up to their own; they are the last ones of the keys' tokens. `given`: may be
// empty.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            double dropout, const Attention& given);

// Throws ArgumentError for dropout that `given` does not do.
void check_dropout(const char* model, const char* option, double dropout, const Attention& given);

// The places of tokens or hidden states, [batch or 1, length]: `position_ids`, or those from `seen` on.
at::Tensor positions_of(const at::Tensor& input, std::int64_t seen, const at::Tensor& position_ids,
                        const char* model);

// The layers of a pipeline's stage.
struct StageLayers {
  // The numbers of layers of two stages differ by at most one. Throws ArgumentError.
  StageLayers(const char* model, int stage_index, int num_stages, std::int64_t layers);

  // Those of the whole model's layers, under their names.
  torch::nn::ModuleDict of(const torch::nn::ModuleDict& whole) const;

  std::int64_t first, last;  // `last` is the next stage's first
  bool is_first, is_last;    // of the stages
};

// Throws ArgumentError unless `input` is what a model, or a stage of one, takes: tokens [batch, length], or
// after the first stage hidden states [batch, length, width]. A stage takes no cache.
void check_input(const char* model, const at::Tensor& input, const DynamicCache* cache,
                 const std::optional<StageLayers>& stage);

// generate() needs the whole model. Throws ArgumentError.
void check_is_whole(const char* model, const std::optional<StageLayers>& stage);

}  // namespace lockstep::models
