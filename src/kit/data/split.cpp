// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include <ATen/ops/randperm.h>

#include <lockstep/base/log.h>
#include <lockstep/data/subset.h>

#include "base/throw_error.h"

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
                                             const std::optional<at::Generator>& generator) {
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

}  // namespace lockstep::data
