// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string_view>

#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <lockstep/data/subset.h>

#include "base/throw_error.h"
#include "data/class_samples.h"

namespace lockstep::data {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr double kDefaultTestSize = 0.1;
constexpr std::int64_t kMost32Bits = std::numeric_limits<std::uint32_t>::max();

// numpy.random.RandomState(seed), as far as the split draws from it.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  void shuffle(Numbers& numbers) {
    for (std::size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[up_to(i)]);
  }

  Numbers permutation(std::size_t count) {
    Numbers numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0);
    shuffle(numbers);
    return numbers;
  }

 private:
  // Masks and rejects, for at most 32 bits.
  std::size_t up_to(std::size_t most) {
    std::size_t mask = most;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    std::size_t value = 0;
    do value = engine_() & mask;
    while (value > most);
    return value;
  }

  std::mt19937 engine_;
};

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

TrainTestIndices stratified_shuffle_split(const at::Tensor& labels, const StratifiedSplitOptions& options) {
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

}  // namespace lockstep::data
