// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include <torch/nn/modules/container/moduledict.h>

#include <lockstep/models/language.h>

namespace lockstep::models {

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
