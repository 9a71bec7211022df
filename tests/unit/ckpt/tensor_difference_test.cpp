// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep_ckpt/leaves.h"

namespace lockstep::ckpt {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorDifference compare(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance = {}) {
  return difference(a, b, tolerance, [](std::uint64_t) {});
}

TEST(TensorDifference, CountsAndMeasures) {
  const auto a = at::tensor({1.0, 2.0, 3.0, 4.0});
  const auto found = compare(a, at::tensor({1.0, 2.5, 3.0, 3.0}));
  EXPECT_EQ(found.count, 2);
  EXPECT_DOUBLE_EQ(found.largest, 1);
  EXPECT_EQ(compare(a, a.clone()).count, 0);
}

TEST(TensorDifference, UsesTheToleranceOfAllclose) {
  const auto a = at::tensor({100.0, 1.0});
  const auto b = at::tensor({101.0, 1.1});
  EXPECT_EQ(compare(a, b, {.atol = 0.5}).count, 1);
  EXPECT_EQ(compare(a, b, {.rtol = 0.05}).count, 1);
  EXPECT_EQ(compare(a, b, {.rtol = 0.05, .atol = 0.1}).count, 0);
}

TEST(TensorDifference, ComparesNanAndInfinities) {
  const auto nan = std::nan("");
  const auto a = at::tensor({nan, kInfinity, -kInfinity, 0.0, nan, kInfinity});
  EXPECT_EQ(compare(a, at::tensor({-nan, kInfinity, -kInfinity, -0.0, nan, kInfinity})).count, 0);
  const auto found =
      compare(a, at::tensor({1.0, -kInfinity, -kInfinity, 0.0, nan, 5.0}), {.rtol = 1, .atol = 1});
  EXPECT_EQ(found.count, 3);
  EXPECT_EQ(found.largest, kInfinity);
}

TEST(TensorDifference, DetectsTheLastDigitOfLargeIntegers) {
  const std::int64_t large = (std::int64_t{1} << 62) + 1;
  EXPECT_EQ(compare(at::tensor({large}), at::tensor({large + 1})).count, 1);
}

TEST(TensorDifference, DetectsDifferencesBeyondTheFirstPiece) {
  const auto a = at::zeros({(1 << 20) + 10});
  auto b = a.clone();
  b[-1] = 3;
  std::uint64_t bytes = 0;
  const auto found = difference(a, b, {}, [&](std::uint64_t piece) { bytes += piece; });
  EXPECT_EQ(found.count, 1);
  EXPECT_EQ(found.largest, 3);
  EXPECT_EQ(bytes, a.nbytes());
}

TEST(TensorDifference, SupportsEveryDtype) {
  for (const auto dtype : {at::kBool,
                           at::kByte,
                           at::kChar,
                           at::kShort,
                           at::kUInt16,
                           at::kInt,
                           at::kUInt32,
                           at::kLong,
                           at::kUInt64,
                           at::kHalf,
                           at::kBFloat16,
                           at::kFloat,
                           at::kDouble,
                           at::kComplexFloat,
                           at::kComplexDouble,
                           at::kFloat8_e5m2,
                           at::kFloat8_e4m3fn,
                           at::kFloat8_e5m2fnuz,
                           at::kFloat8_e4m3fnuz,
                           at::kFloat8_e8m0fnu}) {
    const auto a = at::tensor({1.0, 1.0}).to(dtype);
    const auto b = at::tensor({1.0, dtype == at::kBool ? 0.0 : 2.0}).to(dtype);
    EXPECT_EQ(compare(a, a.clone()).count, 0) << dtype;
    EXPECT_EQ(compare(a, b).count, 1) << dtype;
    EXPECT_EQ(compare(a, b).largest, 1) << dtype;
  }
}

TEST(TensorDifference, SupportsViewsAndSparseTensors) {
  const auto a = at::arange(6.0).view({2, 3});
  EXPECT_EQ(compare(a.t(), a.t().contiguous()).count, 0);
  EXPECT_EQ(compare(a.to_sparse(), (a * 2).to_sparse()).count, 5);
}

}  // namespace
}  // namespace lockstep::ckpt
