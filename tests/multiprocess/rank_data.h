// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::testing {

inline constexpr std::array<std::int64_t, 5> kCounts{0, 1, 7, 1000, 100'000};
inline constexpr std::array kNumbers{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                     at::kInt,   at::kLong,   at::kByte};

// What rank `rank` sends: [count] of small whole numbers, so that sums are exact in every dtype.
inline at::Tensor rank_data(int rank, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  return torch::arange(count, at::kLong).remainder(5).add(rank + 1).to(dtype);
}

inline at::Tensor sum_of_ranks(int size, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  auto sum = torch::zeros({count}, dtype);
  for (int rank = 0; rank < size; ++rank) sum += rank_data(rank, count, dtype);
  return sum;
}

inline std::vector<at::Tensor> empty_each(int size, std::int64_t count, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < size; ++i) tensors.push_back(torch::zeros({count}, dtype));
  return tensors;
}

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(torch::equal(actual, expected))
      << actual.scalar_type() << actual.sizes() << " and " << expected.scalar_type() << expected.sizes();
}

}  // namespace lockstep::testing
