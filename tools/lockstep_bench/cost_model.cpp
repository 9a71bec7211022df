// SPDX-License-Identifier: BSD-3-Clause
#include "cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "backends/hierarchical/host_layout.h"
#include "base/throw_error.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kTerms = std::tuple_size_v<Terms>;

using Matrix = std::array<std::array<double, kTerms + 1>, kTerms>;

// The relative terms, whose product with the right model is 1.
Terms relative(const CostSample& sample) {
  Terms terms = sample.terms;
  for (auto& term : terms) term /= sample.seconds;
  return terms;
}

// Normal equations of the terms in `used`; the others have the solution 0. Columns are scaled to 1.
Matrix equations(const std::vector<Terms>& rows, const std::array<bool, kTerms>& used, const Terms& scale) {
  Matrix matrix{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (!used[i]) {
      matrix[i][i] = 1;
      continue;
    }
    for (const auto& row : rows) {
      for (std::size_t j = 0; j < kTerms; ++j) {
        if (used[j]) matrix[i][j] += row[i] * row[j] / (scale[i] * scale[j]);
      }
      matrix[i][kTerms] += row[i] / scale[i];
    }
  }
  return matrix;
}

// By elimination; nullopt if the equations are dependent.
std::optional<Terms> solve(Matrix matrix) {
  constexpr double kDependent = 1e-9;
  for (std::size_t column = 0; column < kTerms; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column; row < kTerms; ++row) {
      if (std::abs(matrix[row][column]) > std::abs(matrix[pivot][column])) pivot = row;
    }
    if (std::abs(matrix[pivot][column]) < kDependent) return std::nullopt;
    std::swap(matrix[column], matrix[pivot]);
    for (std::size_t row = 0; row < kTerms; ++row) {
      if (row == column) continue;
      const double factor = matrix[row][column] / matrix[column][column];
      for (std::size_t j = column; j <= kTerms; ++j) matrix[row][j] -= factor * matrix[column][j];
    }
  }
  Terms solution{};
  for (std::size_t i = 0; i < kTerms; ++i) solution[i] = matrix[i][kTerms] / matrix[i][i];
  return solution;
}

Terms lengths(const std::vector<Terms>& rows) {
  Terms sums{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < kTerms; ++i) sums[i] += row[i] * row[i];
  }
  for (auto& sum : sums) sum = std::sqrt(sum);
  return sums;
}

double squared_error(const std::vector<Terms>& rows, const Terms& parameters) {
  double sum = 0;
  for (const auto& row : rows) {
    const double error = std::inner_product(row.begin(), row.end(), parameters.begin(), -1.0);
    sum += error * error;
  }
  return sum;
}

}  // namespace

Terms all_reduce_terms(const std::string& backend, std::size_t bytes, const Cluster& cluster) {
  const auto n = static_cast<double>(bytes);
  const double hosts = cluster.hosts;
  const double ranks = cluster.ranks;
  if (backend == "gloo") return {2 * (ranks - 1), 2 * (ranks - 1) / ranks * n, 0};
  if (backend != "hierarchical") {
    throw_error<ArgumentError>("there is no cost model of the backend {}; use hierarchical or gloo", backend);
  }
  const bool is_small = n <= static_cast<double>(backends::kSmallBytes);
  const auto chunk = static_cast<double>(backends::chunk_bytes(cluster.hosts));
  const double chunks = is_small ? 1 : std::ceil(n / chunk);
  return {chunks * 2 * (hosts - 1), 2 * (hosts - 1) / hosts * n, std::min(n, chunk)};
}

double CostModel::seconds(const Terms& terms) const {
  return alpha * terms[0] + beta * terms[1] + gamma * terms[2];
}

// The best model without negative parameters is the best one of some set of parameters, and there are few
// sets.
CostModel fit_cost_model(const std::vector<CostSample>& samples) {
  std::vector<Terms> rows;
  for (const auto& sample : samples) rows.push_back(relative(sample));
  const auto scale = lengths(rows);
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned set = 1; set < 1U << kTerms; ++set) {
    std::array<bool, kTerms> used{};
    bool is_possible = true;
    for (std::size_t i = 0; i < kTerms; ++i) {
      used[i] = (set >> i & 1U) != 0;
      is_possible = is_possible && (!used[i] || scale[i] > 0);
    }
    auto found = is_possible ? solve(equations(rows, used, scale)) : std::nullopt;
    if (!found || std::ranges::any_of(*found, [](double value) { return value < 0; })) continue;
    for (std::size_t i = 0; i < kTerms; ++i) {
      if (used[i]) (*found)[i] /= scale[i];
    }
    const double error = squared_error(rows, *found);
    if (error >= least) continue;
    least = error;
    best = *found;
  }
  return {.alpha = best[0], .beta = best[1], .gamma = best[2]};
}

}  // namespace lockstep::bench
