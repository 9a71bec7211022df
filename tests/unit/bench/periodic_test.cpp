// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep_bench/collectives.h"
#include "lockstep_bench/kinds.h"
#include "lockstep_bench/rank.h"

namespace lockstep::bench {
namespace {

TEST(Periodic, RefillRepeatsThePatternToTheLastElement) {
  for (const auto& dtype : dtypes()) {
    for (const std::int64_t count : {1L, 7L, kBlock, kBlock + 1, 3 * kBlock + 2}) {
      const auto tensor = torch::zeros({count}, scalar_type(dtype.name));
      refill(tensor, pattern_block(2, tensor.scalar_type()));
      EXPECT_EQ(tensor[0].item<std::int64_t>(), pattern_value(2, 0));
      EXPECT_EQ(tensor[-1].item<std::int64_t>(), pattern_value(2, count - 1)) << dtype.name << ' ' << count;
      EXPECT_EQ(differing(tensor, pattern_block(2, tensor.scalar_type())), 0);
      EXPECT_EQ(tensor.element_size(), dtype.size) << dtype.name;
    }
  }
}

TEST(Periodic, DifferingCountsEachWrongElement) {
  const auto block = pattern_block(0, at::kFloat);
  const auto tensor = torch::zeros({2 * kBlock + 3});
  refill(tensor, block);
  for (const std::int64_t at : {0L, kBlock, 2 * kBlock + 2}) tensor[at] = 77;
  EXPECT_EQ(differing(tensor, block), 3);
  EXPECT_EQ(differing(tensor.narrow(0, 1, 10), pattern_block(0, at::kFloat, 1)), 0);
}

TEST(Periodic, ReducedBlocksAreExactForManyRanks) {
  constexpr int kRanks = 8;
  for (std::int64_t i = 0; i < kPeriod; ++i) {
    std::int64_t sum = 0;
    for (int rank = 0; rank < kRanks; ++rank) sum += pattern_value(rank, i + 3);
    EXPECT_EQ(reduced_block(kRanks, ReduceOp::SUM, at::kBFloat16, 3)[i].item<std::int64_t>(), sum);
    EXPECT_EQ(reduced_block(kRanks, ReduceOp::MAX, at::kInt, 3)[i].item<std::int64_t>(),
              pattern_value(7, i + 3));
    EXPECT_EQ(reduced_block(kRanks, ReduceOp::MIN, at::kInt, 3)[i].item<std::int64_t>(),
              pattern_value(0, i + 3));
    EXPECT_EQ(reduced_block(kRanks, ReduceOp::AVG, at::kFloat, 3)[i].item<double>(),
              static_cast<double>(sum) / 8);
  }
}

}  // namespace
}  // namespace lockstep::bench
