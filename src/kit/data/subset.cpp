// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>

#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/data/subset.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/python_functions.h"

namespace lockstep::data {
namespace {

constexpr double kRelativeTolerance = 1e-9;  // of Python's math.isclose

// Compensated, as Python adds since 3.12: ten times 0.1 are 1.
double sum_of(const std::vector<SplitSize>& lengths) {
  double sum = 0;
  double lost = 0;
  for (const auto& length : lengths) {
    const double next = sum + length.value;
    lost += std::abs(sum) >= std::abs(length.value) ? sum - next + length.value : length.value - next + sum;
    sum = next;
  }
  return sum + lost;
}

bool are_fractions(double sum) {
  return sum <= 1 && std::abs(sum - 1) <= kRelativeTolerance * std::max(1.0, std::abs(sum));
}

std::vector<std::int64_t> lengths_of_fractions(std::int64_t size, const std::vector<SplitSize>& fractions) {
  std::vector<std::int64_t> lengths;
  std::int64_t left = size;
  for (std::size_t i = 0; i < fractions.size(); ++i) {
    if (!(fractions[i].value >= 0 && fractions[i].value <= 1)) {
      throw_error<ArgumentError>("random_split: fraction {} is {}; it should be between 0 and 1", i,
                                 fractions[i].value);
    }
    lengths.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(size) * fractions[i].value)));
    left -= lengths.back();
  }
  for (std::size_t i = 0; left > 0; i = (i + 1) % lengths.size(), --left) ++lengths[i];
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > 0) continue;
    log(LogLevel::warning, fmt::format("random_split: split {} is empty: fraction {} of {} samples", i,
                                       fractions[i].value, size));
  }
  return lengths;
}

std::vector<std::int64_t> lengths_of_counts(std::int64_t size, const std::vector<SplitSize>& counts,
                                            double sum) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].is_fraction || counts[i].value < 0) {
      throw_error<ArgumentError>(
          "random_split: length {} is {}; lengths should be integers that are not negative, or fractions "
          "that add up to 1 (these add up to {})",
          i, counts[i].value, sum);
    }
    lengths.push_back(static_cast<std::int64_t>(counts[i].value));
  }
  if (sum != static_cast<double>(size)) {
    throw_error<ArgumentError>("random_split: the lengths add up to {}, but the dataset has {} samples", sum,
                               size);
  }
  return lengths;
}

}  // namespace

std::vector<at::Tensor> random_split_indices(std::int64_t size, const std::vector<SplitSize>& lengths,
                                             const std::optional<at::Generator>& generator,
                                             std::source_location where) {
  const CallerPlace place(where);
  const double sum = sum_of(lengths);
  const auto counts =
      are_fractions(sum) ? lengths_of_fractions(size, lengths) : lengths_of_counts(size, lengths, sum);
  const auto order = at::randperm(size, generator, at::kLong);
  std::vector<at::Tensor> splits;
  std::int64_t first = 0;
  for (const auto count : counts) {
    splits.push_back(order.narrow(0, first, count));
    first += count;
  }
  return splits;
}

namespace {

// Throws ArgumentError that begins with `function` unless `labels` is [n] on the CPU, of an integer dtype,
// with n below 2^32: the generators of the splits draw 32 bits.
void check_labels(std::string_view function, const at::Tensor& labels) {
  if (labels.defined() && labels.is_cpu() && labels.dim() == 1 &&
      c10::isIntegralType(labels.scalar_type(), /*includeBool=*/true) &&
      labels.numel() <= std::numeric_limits<std::uint32_t>::max()) {
    return;
  }
  throw_error<ArgumentError>("{}: labels should be a 1-dimensional tensor of integers on the CPU", function);
}

// The samples of each class in ascending order.
std::map<std::int64_t, std::vector<std::int64_t>> samples_by_class(const at::Tensor& labels) {
  std::map<std::int64_t, std::vector<std::int64_t>> classes;
  const auto values = labels.to(at::kLong).contiguous();
  const auto* begin = values.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) classes[begin[i]].push_back(i);
  return classes;
}

using Numbers = std::vector<std::int64_t>;

constexpr double kDefaultTestSize = 0.1;
constexpr std::int64_t kMost32Bits = std::numeric_limits<std::uint32_t>::max();

struct Sizes {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

void check_size(std::string_view name, const SplitSize& size, std::int64_t samples) {
  const auto limit = size.is_fraction ? 1.0 : static_cast<double>(samples);
  if (size.value > 0 && size.value < limit) return;
  throw_error<ArgumentError>(
      "stratified_shuffle_split: {} is {}; it should be a number of samples between 1 and {}, or a fraction "
      "between 0 and 1",
      name, size.value, samples - 1);
}

// Test samples are rounded up and training samples down.
Sizes sizes_of(const StratifiedSplitOptions& options, std::int64_t samples) {
  auto test = options.test_size;
  const auto& train = options.train_size;
  if (!test && !train) test = kDefaultTestSize;
  if (test) check_size("test_size", *test, samples);
  if (train) check_size("train_size", *train, samples);
  const auto count = [samples](const SplitSize& size, double (*round)(double)) {
    return static_cast<std::int64_t>(size.is_fraction ? round(size.value * static_cast<double>(samples))
                                                      : size.value);
  };
  Sizes sizes;
  if (test) sizes.test = count(*test, std::ceil);
  if (train) sizes.train = count(*train, std::floor);
  if (!train) sizes.train = samples - sizes.test;
  if (!test) sizes.test = samples - sizes.train;
  const bool both_fractions = train && test && train->is_fraction && test->is_fraction;
  if ((both_fractions && train->value + test->value > 1) || sizes.train + sizes.test > samples) {
    throw_error<ArgumentError>(
        "stratified_shuffle_split: {} training and {} test samples are more than all {} samples; reduce "
        "test_size or train_size",
        sizes.train, sizes.test, samples);
  }
  return sizes;
}

// The samples of each class, the classes in ascending order.
std::vector<Numbers> samples_of_classes(const at::Tensor& labels) {
  std::vector<Numbers> samples;
  for (auto&& [label, indices] : samples_by_class(labels)) {
    if (indices.size() < 2) {
      throw_error<ArgumentError>("stratified_shuffle_split: class {} has only 1 sample; every class needs 2",
                                 label);
    }
    samples.push_back(std::move(indices));
  }
  return samples;
}

void check_classes(std::string_view part, std::int64_t samples, std::size_t classes) {
  if (samples >= static_cast<std::int64_t>(classes)) return;
  throw_error<ArgumentError>(
      "stratified_shuffle_split: the {} part has {} samples, fewer than there are classes ({})", part,
      samples, classes);
}

// Distributes `draws` over the classes in proportion to `counts`. What rounding down leaves over goes to the
// classes that lost most; among equals, chance decides.
Numbers share_out(const Numbers& counts, std::int64_t draws, NumpyRandomState& random) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  Numbers shares;
  std::map<double, Numbers, std::greater<>> classes_by_loss;
  std::int64_t left = draws;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double exact = static_cast<double>(counts[i]) / total * static_cast<double>(draws);
    const double rounded = std::floor(exact);
    shares.push_back(static_cast<std::int64_t>(rounded));
    classes_by_loss[exact - rounded].push_back(static_cast<std::int64_t>(i));
    left -= shares.back();
  }
  for (const auto& [loss, classes] : classes_by_loss) {
    if (left <= 0) break;
    const auto order = random.permutation(classes.size());
    for (std::size_t k = 0; k < order.size() && left > 0; ++k, --left) {
      ++shares[static_cast<std::size_t>(classes[static_cast<std::size_t>(order[k])])];
    }
  }
  return shares;
}

Numbers differences(Numbers from, const Numbers& numbers) {
  std::ranges::transform(from, numbers, from.begin(), std::minus<>());
  return from;
}

at::Tensor shuffled(Numbers numbers, NumpyRandomState& random) {
  random.shuffle(numbers);
  return at::tensor(numbers, at::kLong);
}

TrainTestIndices draw_split(const std::vector<Numbers>& classes, const Sizes& sizes,
                            NumpyRandomState& random) {
  Numbers counts;
  for (const auto& samples : classes) counts.push_back(static_cast<std::int64_t>(samples.size()));
  const auto for_training = share_out(counts, sizes.train, random);
  const auto for_test = share_out(differences(counts, for_training), sizes.test, random);
  Numbers train;
  Numbers test;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const auto order = random.permutation(classes[i].size());
    for (std::int64_t k = 0; k < std::min(for_training[i] + for_test[i], counts[i]); ++k) {
      auto& part = k < for_training[i] ? train : test;
      part.push_back(classes[i][static_cast<std::size_t>(order[static_cast<std::size_t>(k)])]);
    }
  }
  // One after the other: both draw.
  auto train_indices = shuffled(std::move(train), random);
  return {.train = std::move(train_indices), .test = shuffled(std::move(test), random)};
}

}  // namespace

TrainTestIndices stratified_shuffle_split(const at::Tensor& labels, const StratifiedSplitOptions& options,
                                          std::source_location where) {
  const CallerPlace place(where);
  check_labels("stratified_shuffle_split", labels);
  if (options.seed < 0 || options.seed > kMost32Bits) {
    throw_error<ArgumentError>("stratified_shuffle_split: seed is {}; it should be in 0 .. 2^32-1",
                               options.seed);
  }
  const auto sizes = sizes_of(options, labels.numel());
  const auto classes = samples_of_classes(labels);
  check_classes("training", sizes.train, classes.size());
  check_classes("test", sizes.test, classes.size());
  NumpyRandomState random(static_cast<std::uint32_t>(options.seed));
  return draw_split(classes, sizes, random);
}

TrainValIndices train_val_split_indices(const at::Tensor& targets, const TrainValSplitOptions& options,
                                        std::source_location where) {
  const CallerPlace place(where);
  check_labels("train_val_split", targets);
  if (!(options.val_fraction >= 0 && options.val_fraction <= 1)) {
    throw_error<ArgumentError>("train_val_split: val_fraction is {}; it should be between 0 and 1",
                               options.val_fraction);
  }
  PythonRandom random(options.seed);
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> val;
  for (const auto& [label, samples] : samples_by_class(targets)) {
    const auto count = static_cast<std::int64_t>(static_cast<double>(samples.size()) * options.val_fraction);
    std::vector<bool> is_val(samples.size());
    for (const auto drawn : random.sample(std::ssize(samples), count)) {
      is_val[static_cast<std::size_t>(drawn)] = true;
    }
    for (std::size_t i = 0; i < samples.size(); ++i) (is_val[i] ? val : train).push_back(samples[i]);
  }
  return {.train = at::tensor(train, at::kLong), .val = at::tensor(val, at::kLong)};
}

namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "), tensor.device().str());
}

void check_row_counts(const std::vector<at::Tensor>& parts, const std::vector<ConcatIndex::Share>& shares) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto samples = shares[i].indices.numel();
    if (parts[i].dim() > 0 && parts[i].size(0) == samples) continue;
    throw_error<ArgumentError>(
        "ConcatDataset: dataset {} returned a tensor {} for {} samples; its first dimension should be the "
        "batch",
        shares[i].dataset, describe(parts[i]), samples);
  }
}

void check_equal_rows(const std::vector<at::Tensor>& parts, const std::vector<ConcatIndex::Share>& shares) {
  const auto& first = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto& part = parts[i];
    if (part.scalar_type() == first.scalar_type() && part.device() == first.device() &&
        part.sizes().slice(1) == first.sizes().slice(1)) {
      continue;
    }
    throw_error<ArgumentError>(
        "ConcatDataset: the batches of datasets {} and {} cannot be merged: {} and {} differ in more than "
        "the first dimension",
        shares.front().dataset, shares[i].dataset, describe(first), describe(part));
  }
}

at::Tensor merge_rows(const std::vector<at::Tensor>& parts, const std::vector<ConcatIndex::Share>& shares) {
  check_row_counts(parts, shares);
  check_equal_rows(parts, shares);
  auto sizes = parts.front().sizes().vec();
  sizes[0] = 0;
  for (const auto& share : shares) sizes[0] += share.indices.numel();
  auto merged = at::empty(sizes, parts.front().options());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    merged.index_copy_(0, shares[i].positions.to(merged.device()), parts[i]);
  }
  return merged;
}

}  // namespace

ConcatIndex::ConcatIndex(const std::vector<std::int64_t>& sizes, std::source_location where) {
  const CallerPlace place(where);
  if (sizes.empty()) throw ArgumentError("ConcatDataset: there are no datasets");
  std::int64_t end = 0;
  for (const auto size : sizes) ends_.push_back(end += size);
}

std::vector<ConcatIndex::Share> ConcatIndex::shares(const at::Tensor& indices,
                                                    std::source_location where) const {
  const CallerPlace place(where);
  check_indices(indices, ends_.back());
  std::vector<std::vector<std::int64_t>> local(ends_.size());
  std::vector<std::vector<std::int64_t>> positions(ends_.size());
  const auto values = indices.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    const auto dataset = static_cast<std::size_t>(std::ranges::upper_bound(ends_, values[i]) - ends_.begin());
    local[dataset].push_back(values[i] - (dataset == 0 ? 0 : ends_[dataset - 1]));
    positions[dataset].push_back(i);
  }
  std::vector<Share> shares;
  for (std::size_t dataset = 0; dataset < ends_.size(); ++dataset) {
    if (local[dataset].empty()) continue;
    shares.push_back({.dataset = dataset,
                      .indices = at::tensor(local[dataset], at::kLong),
                      .positions = at::tensor(positions[dataset], at::kLong)});
  }
  // An empty batch is one of the first dataset.
  if (shares.empty()) shares.push_back({.dataset = 0, .indices = indices, .positions = indices});
  return shares;
}

std::vector<at::Tensor> merge_batches(const std::vector<std::vector<at::Tensor>>& batches,
                                      const std::vector<ConcatIndex::Share>& shares,
                                      std::source_location where) {
  const CallerPlace place(where);
  const auto count = batches.front().size();
  for (std::size_t i = 1; i < batches.size(); ++i) {
    if (batches[i].size() == count) continue;
    throw_error<ArgumentError>(
        "ConcatDataset: batches of datasets {} and {} cannot be merged: one has {} tensors, the other {}",
        shares.front().dataset, shares[i].dataset, count, batches[i].size());
  }
  std::vector<at::Tensor> merged;
  for (std::size_t k = 0; k < count; ++k) {
    std::vector<at::Tensor> parts;
    for (const auto& batch : batches) parts.push_back(batch[k]);
    merged.push_back(merge_rows(parts, shares));
  }
  return merged;
}

}  // namespace lockstep::data
