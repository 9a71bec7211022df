// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>
#include <ranges>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/ranges.h>

#include <lockstep/data/web_dataset.h>

#include "base/caller_place.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/pictures.h"
#include "data/sample_batches.h"
#include "data/shards.h"
#include "device/generators.h"

namespace lockstep::data {
namespace {

std::vector<std::int64_t> checked_sizes(std::vector<std::int64_t> sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw_error<ArgumentError>("ShardSampler: shard {} has {} samples", i, sizes[i]);
  }
  return sizes;
}

DistributedSamplerOptions shared_options(const ShardSamplerOptions& options) {
  return {.num_replicas = options.num_replicas,
          .rank = options.rank,
          .shuffle = options.shuffle,
          .seed = options.seed,
          .drop_last = options.drop_last};
}

// The samples of the shards, one shard after another.
std::vector<std::int64_t> samples_in_order(const at::Tensor& shards, const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> begins(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), std::int64_t{0});
  std::vector<std::int64_t> samples;
  samples.reserve(static_cast<std::size_t>(std::reduce(sizes.begin(), sizes.end())));
  const std::span order(shards.const_data_ptr<std::int64_t>(), sizes.size());
  for (const auto shard : order) {
    const auto at = static_cast<std::size_t>(shard);
    for (std::int64_t i = 0; i < sizes[at]; ++i) samples.push_back(begins[at] + i);
  }
  return samples;
}

// Reorders the samples as a stream of them leaves a shuffle buffer.
void pass_through_buffer(std::span<std::int64_t> samples, std::size_t buffer_size,
                         at::CPUGeneratorImpl& generator) {
  auto filled = std::min(buffer_size, samples.size());
  std::vector<std::int64_t> buffer(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(filled));
  auto next = filled;
  for (auto& out : samples) {
    auto& taken = buffer[generator.random() % filled];  // torch.randint(filled)
    out = std::exchange(taken, buffer[filled - 1]);
    if (next < samples.size()) {
      buffer[filled - 1] = samples[next++];
    } else {
      --filled;
    }
  }
}

}  // namespace

ShardSampler::ShardSampler(const WebDataset& dataset, const ShardSamplerOptions& options,
                           std::source_location where)
    : ShardSampler(dataset.shard_sizes(), options, where) {}

ShardSampler::ShardSampler(std::vector<std::int64_t> shard_sizes, const ShardSamplerOptions& options,
                           std::source_location where)
    : DistributedSampler(std::reduce(shard_sizes.begin(), shard_sizes.end()), shared_options(options), where),
      shard_sizes_(checked_sizes((CallerPlace(where), std::move(shard_sizes)))),
      shuffle_buffer_(options.shuffle_buffer),
      pieces_(options.pieces) {
  const CallerPlace place(where);
  if (shuffle_buffer_ < 1 || pieces_ < 1) {
    throw_error<ArgumentError>("ShardSampler: shuffle_buffer {} and pieces {} should be positive numbers",
                               shuffle_buffer_, pieces_);
  }
}

at::Tensor ShardSampler::order(std::uint64_t seed) const {
  const auto generator = device::seeded_generator(seed);  // of this thread: it needs no lock
  const auto shards = at::randperm(static_cast<std::int64_t>(shard_sizes_.size()), generator, at::kLong);
  auto samples = samples_in_order(shards, shard_sizes_);
  auto order = at::empty({static_cast<std::int64_t>(samples.size())}, at::kLong);
  const std::span out(order.mutable_data_ptr<std::int64_t>(), samples.size());
  const auto pieces = static_cast<std::size_t>(pieces_);
  auto& draws = *at::check_generator<at::CPUGeneratorImpl>(generator);
  std::span rest(samples);
  for (std::size_t i = 0; i < pieces && !rest.empty(); ++i) {
    const auto piece = rest.first(samples.size() / pieces + (i < samples.size() % pieces ? 1 : 0));
    pass_through_buffer(piece, static_cast<std::size_t>(shuffle_buffer_), draws);
    for (std::size_t k = 0; k < piece.size(); ++k) out[k * pieces + i] = piece[k];
    rest = rest.subspan(piece.size());
  }
  return order;
}

namespace {

void check_options(const WebDatasetOptions& options) {
  const WebDatasetOptions defaults;
  if (options.decode && (options.image != defaults.image || options.target != defaults.target ||
                         options.target_transform || options.scaled_decoding ||
                         options.apply_exif_orientation || options.max_pixels != defaults.max_pixels)) {
    throw ArgumentError(
        "WebDataset: decode excludes image, target, target_transform, scaled_decoding, "
        "apply_exif_orientation and max_pixels; it makes data and target itself");
  }
}

std::vector<std::filesystem::path> paths_of(const std::string& urls) {
  if (urls.find("://") != std::string::npos || urls.starts_with("pipe:")) {
    throw_error<ArgumentError>("WebDataset: {}: shards should be local files; download them first", urls);
  }
  const auto names = expand_braces(urls);
  return {names.begin(), names.end()};
}

// The first of the extensions, separated by ';', that the sample has.
const at::Tensor& field_of(const WebSample& sample, std::string_view extensions) {
  for (const auto extension : std::views::split(extensions, ';')) {
    const auto found = sample.fields.find(std::string(extension.begin(), extension.end()));
    if (found != sample.fields.end()) return found->second;
  }
  throw_error<DataError>("there is no field {}, but {}", extensions,
                         fmt::join(std::views::keys(sample.fields), ", "));
}

// An integer as Python's int() reads it from text, without underscores.
std::int64_t parse_target(const at::Tensor& bytes) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  auto text = as_text(bytes);
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
  auto digits = text;
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  if (const auto value = parse_number<std::int64_t>(digits)) return *value;
  throw_error<DataError>("the target should be an integer, but it is \"{}\"", text.substr(0, 40));
}

Batch decode_picture(const WebSample& sample, const WebDatasetOptions& options,
                     const transforms::OptionalGenerator& generator) {
  auto data = decode_and_transform(field_of(sample, options.image), rgb_reading(options), generator);
  const auto target = at::scalar_tensor(parse_target(field_of(sample, options.target)), at::kLong);
  return {.data = std::move(data),
          .target = options.target_transform ? options.target_transform(target) : target};
}

Batch decode_by(const WebSample& sample, const WebDatasetOptions& options,
                const transforms::OptionalGenerator& generator) {
  auto decoded = options.decode(sample);
  if (!decoded.data.defined() || !decoded.target.defined()) {
    throw ArgumentError("decode should give data and target");
  }
  if (options.transform) decoded.data = (*options.transform)(decoded.data, generator);
  return decoded;
}

WebSample read_from(const ShardSet& shards, std::int64_t index) {
  try {
    return shards.read(index);
  } catch (const DataError& error) {
    throw Error(error.what(),
                error.details());  // the shard, not a sample: a policy for damaged samples does not apply
  }
}

Batch load_sample(const ShardSet& shards, std::int64_t index, const WebDatasetOptions& options,
                  const transforms::OptionalGenerator& generator) {
  const auto sample = read_from(shards, index);
  const ErrorFile about(sample.shard);
  try {
    return options.decode ? decode_by(sample, options, generator)
                          : decode_picture(sample, options, generator);
  } catch (const DataError& error) {
    throw_error<DataError>("{}: sample {}: {}", sample.shard.string(), sample.key, error.what());
  } catch (const ArgumentError& error) {
    throw_error<ArgumentError>("{}: sample {}: {}", sample.shard.string(), sample.key, error.what());
  }
}

}  // namespace

WebDataset::WebDataset(const std::string& urls, const WebDatasetOptions& options, std::source_location where)
    : WebDataset(paths_of((CallerPlace(where), urls)), options, where) {}

WebDataset::WebDataset(std::vector<std::filesystem::path> shards, const WebDatasetOptions& options,
                       std::source_location where)
    : options_((CallerPlace(where), check_options(options), options)),
      shards_((CallerPlace(where), std::make_shared<ShardSet>(std::move(shards), options_.index_cache))) {}

std::int64_t WebDataset::size() const { return shards_->size(); }

Batch WebDataset::get_batch(const at::Tensor& indices, std::source_location where) const {
  const CallerPlace place(where);
  return readable_batch({.dataset = "WebDataset",
                         .where = shards_->paths().front().string(),
                         .size = size(),
                         .on_unreadable = options_.on_unreadable,
                         .unreadable = *unreadable_,
                         .load =
                             [this](std::int64_t index, const transforms::OptionalGenerator& generator) {
                               return load_sample(*shards_, index, options_, generator);
                             }},
                        indices);
}

WebSample WebDataset::sample(std::int64_t index, std::source_location where) const {
  const CallerPlace place(where);
  if (index < 0 || index >= size()) {
    throw_error<ArgumentError>("WebDataset: index {} is out of range for {} samples", index, size());
  }
  return shards_->read(index);
}

const std::vector<std::filesystem::path>& WebDataset::shards() const { return shards_->paths(); }

std::vector<std::int64_t> WebDataset::shard_sizes() const { return shards_->sizes(); }

}  // namespace lockstep::data
