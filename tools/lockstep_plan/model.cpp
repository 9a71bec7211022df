// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_plan/model.h"

#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"

namespace lockstep::plan {
namespace {

constexpr const char* kHeader = "name,parameters,flops,activations,output,all_reduces";

template <class Number>
Number number_of(const std::string& text) {
  std::istringstream stream(text);
  Number number{};
  stream >> number;
  if (stream.fail() || !stream.eof() || number < 0) throw_error<ArgumentError>("\"{}\" is no number", text);
  return number;
}

Layer layer_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  if (fields.size() != 6) throw_error<ArgumentError>("it has {} fields, not 6", fields.size());
  return {.name = fields[0],
          .parameters = number_of<std::int64_t>(fields[1]),
          .flops = number_of<double>(fields[2]),
          .activations = number_of<std::int64_t>(fields[3]),
          .output = number_of<std::int64_t>(fields[4]),
          .all_reduces = number_of<int>(fields[5])};
}

}  // namespace

std::vector<Layer> gpt_layers(const GptSizes& sizes) {
  const auto [count, w, v, t] = sizes;
  const auto hidden = t * w * kFloat;
  std::vector<Layer> layers{
      {.name = "embeddings", .parameters = (v + t) * w, .activations = hidden, .output = hidden}};
  // Products with 12 w^2 weights, and two of t x t scores.
  const auto flops = 2.0 * static_cast<double>(t) * static_cast<double>(12 * w * w + 2 * t * w);
  for (std::int64_t i = 0; i < count; ++i) {
    layers.push_back({.name = fmt::format("block {}", i),
                      .parameters = 12 * w * w + 13 * w,
                      .flops = flops,
                      .activations = 16 * hidden,  // inputs of norms and products, and of GELU
                      .output = hidden,
                      .all_reduces = 2});
  }
  layers.push_back({.name = "head",
                    .parameters = w * v + 2 * w,
                    .flops = 2.0 * static_cast<double>(t) * static_cast<double>(w * v),
                    .activations = 2 * hidden + 2 * t * v * kFloat,  // logits and their logarithms of softmax
                    .output = t * v * kFloat});
  return layers;
}

std::vector<Layer> read_layers(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line) || line != kHeader)
    throw_error<ArgumentError>("{} does not begin with the line \"{}\"", file.string(), kHeader);
  std::vector<Layer> layers;
  for (int number = 2; std::getline(stream, line); ++number) {
    if (line.empty()) continue;
    try {
      layers.push_back(layer_of(line));
    } catch (const ArgumentError& error) {
      throw_error<ArgumentError>("{}:{}: {}", file.string(), number, error.what());
    }
  }
  if (layers.empty()) throw_error<ArgumentError>("{} has no layers", file.string());
  return layers;
}

void write_layers(const std::vector<Layer>& layers, const std::filesystem::path& file) {
  std::ofstream stream(file);
  fmt::print(stream, "{}\n", kHeader);
  for (const auto& each : layers)
    fmt::print(stream, "{},{},{},{},{},{}\n", each.name, each.parameters, each.flops, each.activations,
               each.output, each.all_reduces);
  if (!stream.flush()) throw_error<Error>("cannot write {}", file.string());
}

}  // namespace lockstep::plan
