// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/rendezvous/init.h>

#include "backends/registry.h"
#include "parity/both_sides.h"
#include "parity/ddp_case.h"
#include "parity/ddp_record.h"
#include "parity/ddp_training.h"
#include "support/hosts.h"

namespace lockstep::testing {
namespace {

// Of sums that are added in another order. A difference of one bit in a gradient grows in the steps after it.
constexpr float kFirstStep = 1e-6F;
// The case mnist has 100 steps.
float after_training(const DdpCase& each) { return each.name == "mnist" ? 5e-2F : 1e-2F; }

const Scenario kTrainAllCases("ddp_parity", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& each : ddp_cases()) {
      write_records(record_file(record_folder(), each.name, context.rank()), train_with_ddp(each));
    }
  });
});

std::vector<std::string> words_of_all() {
  std::vector<std::string> words;
  for (const auto& each : ddp_cases()) words.push_back(to_words(each));
  return words;
}

void expect_a_real_run(const std::vector<Record>& python, const DdpCase& each) {
  ASSERT_GE(python.size(), 9U);
  const auto& losses = python.front().values;
  if (!each.loader) {
    EXPECT_GE(losses.size(), static_cast<std::size_t>(each.steps));
  }
  EXPECT_TRUE(std::ranges::all_of(losses, [](float loss) { return std::isfinite(loss); }));
  if (each.bucket_cap_mb > 0 && python.back().name == "rebuilt_bucket_sizes") {
    EXPECT_GE(python.back().values.size(), 3U);
  }
}

void expect_same_bits(const std::vector<Record>& python, const std::vector<Record>& ours) {
  ASSERT_EQ(python.size(), ours.size());
  for (std::size_t i = 0; i < python.size(); ++i) EXPECT_EQ(first_difference(python[i], ours[i]), "");
}

void expect_close(const std::vector<Record>& python, const std::vector<Record>& ours, float tolerance) {
  ASSERT_EQ(python.size(), ours.size());
  for (std::size_t i = 0; i < python.size(); ++i) {
    const auto expected = torch::tensor(python[i].values);
    const auto actual = torch::tensor(ours[i].values);
    ASSERT_EQ(actual.sizes(), expected.sizes()) << python[i].name;
    if (expected.numel() == 0) continue;
    const auto difference = (actual - expected).abs() / expected.abs().max().clamp_min(1e-12);
    EXPECT_LE(difference.max().item<float>(), tolerance) << python[i].name;
    if (i > 0) continue;
    EXPECT_LE(difference.slice(0, 0, 2).max().item<float>(), kFirstStep)
        << "the losses before and after a step";
  }
}

class DdpParity : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(DdpParity, LossesWeightsBuffersAndBuckets) {
  const auto& [backend, world_size] = GetParam();
  const bool adds_in_another_order =
      world_size > 2 && (backend_of(backend) == "hierarchical" || backend == "mpi");
  const BothSides sides("parity/ddp_training.py", kTrainAllCases, words_of_all(), backend, world_size);
  ASSERT_FALSE(HasFailure());
  for (const auto& each : ddp_cases()) {
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(fmt::format("case {}, rank {} of {}", each.name, rank, world_size));
      const auto expected = read_records(sides.python_file(each.name, rank));
      expect_a_real_run(expected, each);
      const auto ours = read_records(sides.our_file(each.name, rank));
      adds_in_another_order ? expect_close(expected, ours, after_training(each))
                            : expect_same_bits(expected, ours);
    }
  }
}

// Three: sizes that are no power of two divide through the reciprocal. Python runs over Gloo. The others add
// two summands to the same sum, and more of them in a different order.
std::vector<std::pair<std::string, int>> backends_and_sizes() {
  std::vector<std::pair<std::string, int>> all{{"gloo", 1},
                                               {"gloo", 2},
                                               {"gloo", 3},
                                               {"shm", 2},
                                               {"threads_gloo", 2},
                                               {"threads_shm", 2},
                                               {"hierarchical_1_1", 2}};
  const auto built = backends::available_backends();
  const bool has_mpi = std::ranges::find(built, "mpi") != built.end();
  if (has_mpi) all.emplace_back("mpi", 2);
  if (std::getenv("LOCKSTEP_DDP_GRID") == nullptr) return all;
  all.insert(all.end(), {{"gloo", 4},
                         {"threads_gloo", 4},
                         {"hierarchical_1_1_1", 3},
                         {"hierarchical_2_2", 4},
                         {"hierarchical_3_1", 4}});
  if (has_mpi) all.insert(all.end(), {{"mpi", 3}, {"mpi", 4}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(WorldSize, DdpParity, ::testing::ValuesIn(backends_and_sizes()),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

}  // namespace
}  // namespace lockstep::testing
