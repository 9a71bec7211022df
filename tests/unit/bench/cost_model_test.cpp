// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_bench/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;

constexpr Cluster kCluster{.hosts = 4, .ranks = 8};

std::vector<CostSample> samples_of(const CostModel& model, const std::string& backend) {
  std::vector<CostSample> samples;
  for (const std::size_t bytes : {1'000U, 100'000U, 1'000'000U, 10'000'000U, 100'000'000U}) {
    const auto terms = all_reduce_terms(backend, bytes, kCluster);
    samples.push_back({.terms = terms, .seconds = model.seconds(terms)});
  }
  return samples;
}

TEST(CostModel, CountsMessagesAndBytes) {
  EXPECT_THAT(all_reduce_terms("hierarchical", 1000, kCluster), ElementsAre(6, 1500, 1000));
  EXPECT_THAT(all_reduce_terms("hierarchical", std::size_t{10} << 20U, kCluster),
              ElementsAre(12, 15.0 * (1U << 20U), 8.0 * (1U << 20U)));
  EXPECT_THAT(all_reduce_terms("hierarchical", std::size_t{10} << 20U, {.hosts = 16, .ranks = 16}),
              ElementsAre(30, 18.75 * (1U << 20U), 10.0 * (1U << 20U)));
  EXPECT_THAT(all_reduce_terms("gloo", 1000, kCluster), ElementsAre(14, 1750, 0));
  EXPECT_THROW(all_reduce_terms("shm", 1000, kCluster), ArgumentError);
}

TEST(CostModel, FitFindsTheParametersOfItsSamples) {
  const CostModel model{.alpha = 40e-6, .beta = 8e-9, .gamma = 0.3e-9};
  const auto fitted = fit_cost_model(samples_of(model, "hierarchical"));
  EXPECT_NEAR(fitted.alpha, model.alpha, 1e-6 * model.alpha);
  EXPECT_NEAR(fitted.beta, model.beta, 1e-6 * model.beta);
  EXPECT_NEAR(fitted.gamma, model.gamma, 1e-4 * model.gamma);
}

TEST(CostModel, FitOfGlooHasNoTermOfTheHost) {
  const CostModel model{.alpha = 40e-6, .beta = 8e-9};
  const auto fitted = fit_cost_model(samples_of(model, "gloo"));
  EXPECT_NEAR(fitted.alpha, model.alpha, 1e-6 * model.alpha);
  EXPECT_NEAR(fitted.beta, model.beta, 1e-6 * model.beta);
  EXPECT_EQ(fitted.gamma, 0);
}

// The absolute error of the long call would hide the short one.
TEST(CostModel, FitWeighsShortAndLongCallsAlike) {
  const auto fitted = fit_cost_model({{.terms = {1, 0, 0}, .seconds = 1e-6},
                                      {.terms = {1, 0, 0}, .seconds = 2e-6},
                                      {.terms = {0, 1e9, 0}, .seconds = 1}});
  // Least squares of a / 1 - 1 and a / 2 - 1.
  EXPECT_NEAR(fitted.alpha, 1.2e-6, 1e-12);
  EXPECT_NEAR(fitted.beta, 1e-9, 1e-15);
}

TEST(CostModel, NoParameterIsNegative) {
  // The straight line through these points begins below zero.
  const auto fitted =
      fit_cost_model({{.terms = {1, 1, 0}, .seconds = 1}, {.terms = {1, 2, 0}, .seconds = 4}});
  EXPECT_EQ(fitted.alpha, 0);
  EXPECT_NEAR(fitted.beta, 1.2, 1e-9);
}

TEST(CostModel, OneSampleDeterminesOneParameter) {
  const auto fitted = fit_cost_model({{.terms = {2, 1000, 10}, .seconds = 1}});
  EXPECT_NEAR(fitted.seconds({2, 1000, 10}), 1, 1e-9);
  EXPECT_EQ(fit_cost_model({}).seconds({1, 1, 1}), 0);
}

}  // namespace
}  // namespace lockstep::bench
