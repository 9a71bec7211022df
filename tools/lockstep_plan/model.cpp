// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_plan/model.h"

#include <fstream>
#include <span>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"
#include "base/throw_error.h"

namespace lockstep::plan {
namespace {

const std::vector<std::string> kFields{
    "name",        "parameters", "flops",   "activations",       "output",
    "all_reduces", "keys",       "experts", "expert_parameters", "dispatched"};
constexpr std::size_t kRequired = 6;

std::string header(std::size_t fields) {
  return fmt::format("{}",
                     fmt::join(kFields.begin(), kFields.begin() + static_cast<std::ptrdiff_t>(fields), ","));
}

template <class Number>
Number number_of(const std::string& text) {
  std::istringstream stream(text);
  Number number{};
  stream >> number;
  if (stream.fail() || !stream.eof() || number < 0)
    throw_error<ArgumentError>("\"{}\" is not a number of 0 or more", text);
  return number;
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

Layer layer_of(const std::string& line, std::size_t count) {
  auto fields = fields_of(line);
  if (fields.size() != count) throw_error<ArgumentError>("it has {} fields, not {}", fields.size(), count);
  fields.resize(kFields.size(), "0");
  return {.name = fields[0],
          .parameters = number_of<std::int64_t>(fields[1]),
          .flops = number_of<double>(fields[2]),
          .activations = number_of<std::int64_t>(fields[3]),
          .output = number_of<std::int64_t>(fields[4]),
          .all_reduces = number_of<int>(fields[5]),
          .keys = number_of<std::int64_t>(fields[6]),
          .experts = number_of<int>(fields[7]),
          .expert_parameters = number_of<std::int64_t>(fields[8]),
          .dispatched = number_of<std::int64_t>(fields[9])};
}

// The number of fields of the table.
std::size_t read_header(const std::string& line, const std::filesystem::path& file) {
  for (auto count = kRequired; count <= kFields.size(); ++count)
    if (line == header(count)) return count;
  throw_error<ArgumentError>(
      "{} does not begin with the line \"{}\", of which the last fields may be left out", file.string(),
      header(kFields.size()));
}

// Numbers of a block's parts, for t positions of width w.
Layer attention_layer(const std::string& name, std::int64_t w, std::int64_t t) {
  const auto hidden = t * w * kFloat;
  // Products with 4 w^2 weights, and two of t x t scores.
  return {.name = name,
          .parameters = 4 * w * w + 6 * w,
          .flops = 2.0 * static_cast<double>(t) * static_cast<double>(4 * w * w + 2 * t * w),
          .activations = 7 * hidden,  // inputs of the norm and of products, and the attention's output
          .output = hidden,
          .all_reduces = 1,
          .keys = 2 * hidden};
}

// `copies`: of each position.
Layer mlp_layer(const std::string& name, std::int64_t w, std::int64_t t, std::int64_t copies) {
  const auto hidden = t * w * kFloat;
  return {.name = name,
          .parameters = 8 * w * w + 7 * w,
          .flops = 2.0 * static_cast<double>(t * copies) * static_cast<double>(8 * w * w),
          .activations = (1 + 9 * copies) * hidden,  // inputs of the norm, of products and of GELU
          .output = hidden,
          .all_reduces = 1};
}

std::vector<Layer> block_layers(const GptSizes& sizes, std::int64_t number) {
  const auto w = sizes.width, t = sizes.context;
  auto block = attention_layer(fmt::format("block {}", number), w, t);
  auto mlp = mlp_layer(fmt::format("experts {}", number), w, t, sizes.experts > 0 ? sizes.top_k : 1);
  if (sizes.experts == 0) {
    block.parameters += mlp.parameters;
    block.flops += mlp.flops;
    block.activations += mlp.activations;
    block.all_reduces = 2;
    return {block};
  }
  mlp.all_reduces = 0;
  mlp.experts = sizes.experts;
  mlp.expert_parameters = sizes.experts * (8 * w * w + 5 * w);
  mlp.parameters = mlp.expert_parameters + sizes.experts * w + 2 * w;
  mlp.flops += 2.0 * static_cast<double>(t * w * sizes.experts);
  mlp.dispatched = sizes.top_k * mlp.output;
  return {block, mlp};
}

}  // namespace

std::vector<Layer> gpt_layers(const GptSizes& sizes) {
  const auto w = sizes.width, v = sizes.vocabulary, t = sizes.context;
  const auto hidden = t * w * kFloat;
  std::vector<Layer> layers{
      {.name = "embeddings", .parameters = (v + t) * w, .activations = hidden, .output = hidden}};
  for (std::int64_t i = 0; i < sizes.layers; ++i)
    for (const auto& layer : block_layers(sizes, i)) layers.push_back(layer);
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
  std::getline(stream, line);
  const auto fields = read_header(line, file);
  std::vector<Layer> layers;
  for (int number = 2; std::getline(stream, line); ++number) {
    if (line.empty()) continue;
    try {
      layers.push_back(layer_of(line, fields));
    } catch (const ArgumentError& error) {
      throw_error<ArgumentError>("{}:{}: {}", file.string(), number, error.what());
    }
  }
  if (layers.empty()) throw_error<ArgumentError>("{} has no layers; give each layer a line", file.string());
  return layers;
}

void write_text(const std::string& text, const std::filesystem::path& file) {
  try {
    AtomicFile target(file, {.sync = false});
    target.write(std::as_bytes(std::span(text)));
    target.commit();
  } catch (const std::system_error& error) {
    throw_error<Error>("cannot write {}: {}; check that its folder exists and has space", file.string(),
                       errno_text(error.code().value()));
  }
}

void write_layers(const std::vector<Layer>& layers, const std::filesystem::path& file) {
  std::ostringstream stream;
  fmt::print(stream, "{}\n", header(kFields.size()));
  for (const auto& each : layers)
    fmt::print(stream, "{},{},{},{},{},{},{},{},{},{}\n", each.name, each.parameters, each.flops,
               each.activations, each.output, each.all_reduces, each.keys, each.experts,
               each.expert_parameters, each.dispatched);
  write_text(stream.str(), file);
}

}  // namespace lockstep::plan
