// SPDX-License-Identifier: BSD-3-Clause
#include "modules/gradient_norm.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/error_of.h"

namespace lockstep::modules {
namespace {

using at::Tensor;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double norm_of(const std::vector<Tensor>& gradients, double norm_type, double max_norm = kInf,
               bool error_if_nonfinite = false) {
  std::vector<CountedGradient> counted;
  for (const auto& gradient : gradients) counted.push_back({gradient});
  return clip_gradients(counted, max_norm,
                        {.norm_type = norm_type, .error_if_nonfinite = error_if_nonfinite});
}

TEST(GradientNorm, RefusesWhatIsNoNormAndNoLimit) {
  const std::vector<Tensor> gradients{torch::ones({2})};
  EXPECT_THAT(error_of<ArgumentError>([&] { norm_of(gradients, kNaN); }),
              AllOf(HasSubstr("norm_type is NaN"), HasSubstr("infinity or -infinity")));
  for (const double max_norm : {-1.0, -kInf, kNaN})
    EXPECT_THAT(error_of<ArgumentError>([&] { norm_of(gradients, 2, max_norm); }),
                AllOf(HasSubstr("max_norm is"), HasSubstr("0 or more")));
  EXPECT_TRUE(gradients[0].equal(torch::ones({2})));
}

TEST(GradientNorm, TakesLimitsFromZeroToInfinity) {
  const auto gradient = torch::full({4}, 2.0F);
  EXPECT_EQ(norm_of({gradient}, 2, kInf), 4);
  EXPECT_TRUE(gradient.equal(torch::full({4}, 2.0F)));
  EXPECT_EQ(norm_of({gradient}, 2, 0), 4);
  EXPECT_TRUE(gradient.equal(torch::zeros({4})));
}

TEST(GradientNorm, IsZeroWithoutElements) {
  for (const double type : {2.0, 0.5, 0.0, -1.0, kInf, -kInf}) {
    EXPECT_EQ(norm_of({}, type), 0) << type;
    EXPECT_EQ(norm_of({Tensor(), torch::empty({0, 3})}, type, 1, true), 0) << type;
    EXPECT_EQ(norm_of({torch::empty({0, 3}), torch::full({1}, -2.0F), Tensor()}, type), type == 0 ? 1 : 2)
        << type;
  }
}

// Elements that a sparse gradient does not store are zeros.
TEST(GradientNorm, TakesSparseGradientsAsDenseOnes) {
  const auto indices = torch::tensor({{0, 2, 0}}, at::kLong);
  const auto sparse = torch::sparse_coo_tensor(indices, torch::tensor({3.0, 4.0, -6.0}), {4});
  const auto full =
      torch::sparse_coo_tensor(torch::tensor({{1, 0}}, at::kLong), torch::tensor({3.0, -4.0}), {2});
  const auto none = torch::sparse_coo_tensor(torch::empty({1, 0}, at::kLong), torch::empty({0}), {4});
  for (const auto& each : {sparse, full, none}) {
    for (const double type : {2.0, 0.5, 0.0, -1.0, kInf, -kInf})
      EXPECT_DOUBLE_EQ(norm_of({each}, type), norm_of({each.to_dense()}, type)) << type;
    const auto dense = each.to_dense();
    norm_of({each}, 2, 0.5);
    norm_of({dense}, 2, 0.5);
    EXPECT_TRUE(each.to_dense().allclose(dense));
  }
}

TEST(GradientNorm, TakesComplexHalfAndMixedDtypes) {
  const auto complex = torch::complex(torch::full({1}, 3.0), torch::full({1}, 4.0));
  EXPECT_EQ(norm_of({complex, torch::zeros({2}, at::kDouble)}, 2), 5);
  EXPECT_EQ(norm_of({torch::full({4}, 1.5, at::kHalf), torch::full({1}, 4.0, at::kDouble)}, 2), 5);
  const auto large = torch::full({4}, 60000.0, at::kHalf);  // its norm is no half
  EXPECT_EQ(norm_of({large}, 2, 60000), 120000);
  EXPECT_TRUE(large.equal(torch::full({4}, 30000.0, at::kHalf)));
}

TEST(GradientNorm, IsNaNWithNaN) {
  for (const double type : {2.0, 0.5, -1.0, kInf, -kInf}) {
    const auto first = torch::full({1}, kNaN), last = torch::tensor({1.0, kNaN});
    EXPECT_TRUE(std::isnan(norm_of({first, torch::ones({2})}, type))) << type;
    EXPECT_TRUE(std::isnan(norm_of({torch::ones({2}), last}, type))) << type;
    const auto other = torch::ones({2});
    EXPECT_THAT(error_of<NonFiniteError>([&] {
                  norm_of({other, last}, type, 1, true);
                }),
                HasSubstr("nan"))
        << type;
    EXPECT_TRUE(other.equal(torch::ones({2})));
    norm_of({other, last}, type, 1);
    EXPECT_TRUE(other.isnan().all().item<bool>()) << type;  // as PyTorch does
  }
}

}  // namespace
}  // namespace lockstep::modules
