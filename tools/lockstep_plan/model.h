// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::plan {

constexpr std::int64_t kFloat = 4;  // bytes

// A layer of a model. Numbers are for one sample, in float32.
struct Layer {
  std::string name;
  std::int64_t parameters = 0;
  double flops = 0;  // of forward; backward has twice as many
  // Bytes that forward keeps for backward; 2 * all_reduces * output of them on each tensor parallel rank.
  std::int64_t activations = 0;
  std::int64_t output = 0;  // bytes that the next layer gets
  // All-reduces of the output in forward, and as many in backward, if tensor parallelism cuts the layer; 0:
  // it does not.
  int all_reduces = 0;
  std::int64_t keys = 0;               // bytes of keys and values, if it has attention
  int experts = 0;                     // 0: it has none
  std::int64_t expert_parameters = 0;  // of all experts, among `parameters`
  std::int64_t dispatched = 0;         // bytes that the experts get
};

struct GptSizes {
  std::int64_t layers = 12, width = 768, vocabulary = 50257, context = 1024;
  int experts = 0, top_k = 2;  // of each block; 0: an MLP
};

// The embeddings, the blocks and the head of a GPT, untied, with attention that keeps no scores. A block with
// experts is two layers.
std::vector<Layer> gpt_layers(const GptSizes& sizes);

// A CSV file with the header "name,parameters,flops,activations,output,all_reduces,keys,experts,
// expert_parameters,dispatched", of which the last four may be left out. Throws ArgumentError with the line
// that is wrong.
std::vector<Layer> read_layers(const std::filesystem::path& file);
// Replaces `file` by `text`. Throws Error that names it.
void write_text(const std::string& text, const std::filesystem::path& file);

void write_layers(const std::vector<Layer>& layers, const std::filesystem::path& file);

}  // namespace lockstep::plan
