// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/rendezvous/init.h>

#include "parity/both_sides.h"
#include "parity/ddp_record.h"
#include "parity/feature_case.h"
#include "parity/feature_training.h"

namespace lockstep::testing::feature_parity_test {
namespace {

const Scenario kTrainAllCases("feature_parity", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& each : feature_cases()) {
      try {
        write_records(record_file(record_folder(), each.name, context.rank()), train_with_features(each));
      } catch (const std::exception& error) {
        throw std::runtime_error("case " + each.name + ": " + error.what());
      }
    }
  });
});

std::vector<std::string> words_of_all() {
  std::vector<std::string> words;
  for (const auto& each : feature_cases()) words.push_back(to_words(each));
  return words;
}

void expect_a_real_run(const std::vector<Record>& python) {
  ASSERT_GE(python.size(), 9U);
  const auto& losses = python.front().values;
  EXPECT_TRUE(std::ranges::all_of(losses, [](float loss) { return std::isfinite(loss); }));
}

class FeatureParity : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(FeatureParity, LossesWeightsGradientsBuffersAndBucketsToTheLastBit) {
  const auto& [backend, world_size] = GetParam();
  const BothSides sides("parity/feature_training.py", kTrainAllCases, words_of_all(), backend, world_size);
  ASSERT_FALSE(HasFailure());
  for (const auto& each : feature_cases()) {
    if (world_size > each.most_ranks) continue;
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(fmt::format("case {}, rank {} of {}", each.name, rank, world_size));
      const auto python = read_records(sides.python_file(each.name, rank));
      const auto ours = read_records(sides.our_file(each.name, rank));
      expect_a_real_run(python);
      EXPECT_EQ(python.size(), ours.size());
      for (std::size_t i = 0; i < std::min(python.size(), ours.size()); ++i) {
        EXPECT_EQ(first_difference(python[i], ours[i]), "");
      }
    }
  }
}

// See ddp_parity_test.cpp for why shm is compared at two ranks only.
INSTANTIATE_TEST_SUITE_P(WorldSize, FeatureParity,
                         ::testing::Values(std::pair{"gloo", 2}, std::pair{"gloo", 4}, std::pair{"shm", 2},
                                           std::pair{"threads_gloo", 2}, std::pair{"threads_shm", 2}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

}  // namespace
}  // namespace lockstep::testing::feature_parity_test
