// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include <lockstep/models/language.h>

namespace lockstep::models {

// The logits [batch, vocabulary] that follow tokens [batch, length].
using NextLogits = std::function<at::Tensor(const at::Tensor& input_ids, DynamicCache* cache)>;

at::Tensor generate_tokens(const NextLogits& next_logits, const at::Tensor& input_ids,
                           const GenerateOptions& options);

// Queries attend to all tokens up to their own; they are the last ones of the keys' tokens.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                            double dropout);

}  // namespace lockstep::models
