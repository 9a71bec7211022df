// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include <lockstep/models/language.h>

namespace lockstep::models {

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

}  // namespace lockstep::models
