// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/training/logging.h>

namespace lockstep::training {

// A HistogramProto: counts[i] elements are above limits[i - 1] and up to limits[i].
struct Histogram {
  double min = 0;
  double max = 0;
  double num = 0;
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

// The bins from the last empty one before the first element to that of the last element, as PyTorch's
// make_histogram(). Throws ArgumentError as add_histogram().
Histogram make_histogram(const at::Tensor& values, const HistogramBins& bins,
                         std::optional<std::int64_t> max_bins);

}  // namespace lockstep::training
