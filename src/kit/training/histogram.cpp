// SPDX-License-Identifier: BSD-3-Clause
#include "training/histogram.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ops/bincount.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>

#include "base/throw_error.h"

namespace lockstep::training {
namespace {

using Numbers = std::vector<double>;

Numbers exponential_edges() {
  Numbers positive;
  for (double edge = 1e-12; edge < 1e20; edge *= 1.1) positive.push_back(edge);
  Numbers edges(positive.rbegin(), positive.rend());
  for (auto& edge : edges) edge = -edge;
  edges.push_back(0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

double percentile(const at::Tensor& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.numel() - 1);
  const auto below = static_cast<std::int64_t>(position);
  const auto* elements = sorted.const_data_ptr<double>();
  return std::lerp(elements[below], elements[std::min(below + 1, sorted.numel() - 1)],
                   position - static_cast<double>(below));
}

// The width of a bin by numpy.histogram_bin_edges' estimator of that name; 0: one bin.
double estimated_width(const std::string& estimator, const at::Tensor& values, double range) {
  const auto n = static_cast<double>(values.numel());
  const double sturges = range / (std::log2(n) + 1);
  if (estimator == "sturges") return sturges;
  if (estimator == "sqrt") return range / std::sqrt(n);
  if (estimator == "rice") return range / (2 * std::cbrt(n));
  if (estimator == "fd" || estimator == "auto") {
    const auto sorted = std::get<0>(values.sort());
    const double fd = 2 * (percentile(sorted, 0.75) - percentile(sorted, 0.25)) / std::cbrt(n);
    return estimator == "fd" ? fd : std::min(std::max(fd, range / std::sqrt(n) / 2), sturges);
  }
  const double deviation = values.std(false).item<double>();
  if (estimator == "scott") return std::cbrt(24 * std::sqrt(std::numbers::pi) / n) * deviation;
  if (estimator == "doane") {
    if (n <= 2 || deviation == 0) return 0;
    const double skewness = values.sub(values.mean()).div(deviation).pow(3).mean().item<double>();
    const double scale = std::sqrt(6 * (n - 2) / ((n + 1) * (n + 3)));
    return range / (1 + std::log2(n) + std::log2(1 + std::abs(skewness) / scale));
  }
  throw_error<ArgumentError>(
      "add_histogram: bins should be tensorflow, auto, doane, fd, rice, scott, sqrt, sturges, a number or "
      "edges, not {}",
      estimator);
}

Numbers equal_edges(double first, double last, std::int64_t bins) {
  Numbers edges;
  const double step = (last - first) / static_cast<double>(bins);
  for (std::int64_t i = 0; i < bins; ++i) edges.push_back(static_cast<double>(i) * step + first);
  edges.push_back(last);
  return edges;
}

struct BinEdges {
  const at::Tensor& values;
  double min;
  double max;

  Numbers operator()(const std::string& rule) const {
    if (rule == "tensorflow") return exponential_edges();
    require_finite();
    const double width = estimated_width(rule, values, max - min);
    return equal(width > 0 ? static_cast<std::int64_t>(std::ceil(range() / width)) : 1);
  }
  Numbers operator()(std::int64_t bins) const {
    require_finite();
    return equal(bins);
  }
  Numbers operator()(const Numbers& edges) const {
    if (edges.size() < 2 || !std::ranges::is_sorted(edges)) {
      throw ArgumentError("add_histogram: edges of bins should be ascending, and at least two");
    }
    return edges;
  }

 private:
  void require_finite() const {
    if (std::isfinite(min) && std::isfinite(max)) return;
    throw_error<ArgumentError>(
        "add_histogram: the values are from {} to {}; only \"tensorflow\" and given "
        "edges can leave out values that are not finite",
        min, max);
  }
  double range() const { return min == max ? 1 : max - min; }
  Numbers equal(std::int64_t bins) const {
    constexpr std::int64_t most = 1'000'000;
    if (bins < 1 || bins > most) {
      throw_error<ArgumentError>("add_histogram: the number of bins should be 1 to {}, not {}", most, bins);
    }
    return min == max ? equal_edges(min - 0.5, max + 0.5, bins) : equal_edges(min, max, bins);
  }
};

// Elements from edge to edge; those at the last edge belong to the last bin.
Numbers count(const at::Tensor& values, const Numbers& edges) {
  const auto bins = static_cast<std::int64_t>(edges.size()) - 1;
  const auto above = at::searchsorted(at::tensor(edges, at::kDouble), values, false, true);
  const auto counts = at::bincount(above, {}, bins + 2).to(at::kDouble);
  const auto* first = counts.const_data_ptr<double>() + 1;
  Numbers result(first, first + bins);
  result.back() += values.eq(edges.back()).sum().item<double>();
  return result;
}

void merge_neighbours(Numbers& counts, Numbers& edges, std::int64_t max_bins) {
  const auto size = counts.size() / static_cast<std::size_t>(max_bins);
  if (size < 2) return;
  Numbers merged((counts.size() + size - 1) / size);
  Numbers kept;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    merged[i / size] += counts[i];
    if (i % size == 0) kept.push_back(edges[i]);
  }
  kept.push_back(edges.back());
  counts = std::move(merged);
  edges = std::move(kept);
}

}  // namespace

Histogram make_histogram(const at::Tensor& values, const HistogramBins& bins,
                         std::optional<std::int64_t> max_bins) {
  if (!values.defined() || values.numel() == 0) throw ArgumentError("add_histogram: there are no values");
  if (values.is_complex()) throw ArgumentError("add_histogram: the values should be real");
  if (max_bins && *max_bins < 1) {
    throw_error<ArgumentError>("add_histogram: max_bins should be positive, not {}", *max_bins);
  }
  const auto flat = values.detach().to(at::kCPU, at::kDouble).reshape({-1}).contiguous();
  Histogram result{.min = flat.min().item<double>(),
                   .max = flat.max().item<double>(),
                   .num = static_cast<double>(flat.numel()),
                   .sum = flat.sum().item<double>(),
                   .sum_squares = flat.dot(flat).item<double>(),
                   .limits = {},
                   .counts = {}};
  auto edges = std::visit(BinEdges{flat, result.min, result.max}, bins);
  auto counts = count(flat, edges);
  if (max_bins) merge_neighbours(counts, edges, *max_bins);
  const auto filled = [](double number) { return number > 0; };
  const auto first = std::ranges::find_if(counts, filled) - counts.begin();
  if (first == std::ssize(counts)) {
    throw_error<ArgumentError>("add_histogram: no value is within the bins, which are from {} to {}",
                               edges.front(), edges.back());
  }
  const auto last = std::find_if(counts.rbegin(), counts.rend(), filled).base() - counts.begin();
  // A limit is the upper one, so an empty bin states where the first one begins.
  result.counts.push_back(0);
  result.counts.insert(result.counts.end(), counts.begin() + first, counts.begin() + last);
  result.limits.assign(edges.begin() + first, edges.begin() + last + 1);
  return result;
}

}  // namespace lockstep::training
