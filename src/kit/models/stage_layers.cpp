// SPDX-License-Identifier: BSD-3-Clause
#include "models/stage_layers.h"

#include "base/throw_error.h"

namespace lockstep::models {

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
