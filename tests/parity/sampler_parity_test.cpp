// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/data/sampler.h>

#include "parity/sampler_case.h"
#include "support/python.h"

namespace lockstep::data {
namespace {

using testing::SamplerCase;
using Numbers = std::vector<std::int64_t>;

Numbers to_numbers(const at::Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<std::int64_t>();
  return {begin, begin + tensor.numel()};
}

std::int64_t next_number(const std::optional<at::Generator>& generator = std::nullopt) {
  return at::empty({}, at::kLong).random_(generator).item<std::int64_t>();
}

std::optional<at::Generator> own_generator(const SamplerCase& each) {
  if (each["own_seed"] < 0) return std::nullopt;
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(each["own_seed"]));
}

// The oracle runs once for all the tests of this file.
class SamplerParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cases_ = testing::parse_cases(testing::run_python("parity/sampler_cases.py"));
  }
  static std::vector<SamplerCase> cases_of(const std::string& kind) {
    std::vector<SamplerCase> some;
    for (const auto& each : cases_) {
      if (each.kind == kind) some.push_back(each);
    }
    return some;
  }

 private:
  static inline std::vector<SamplerCase> cases_;
};

TEST_F(SamplerParity, DistributedSamplerIndexForIndex) {
  const auto cases = cases_of("distributed");
  ASSERT_GE(cases.size(), 500U);
  for (const auto& each : cases) {
    DistributedSampler sampler(each["n"], {.num_replicas = static_cast<int>(each["world"]),
                                           .rank = static_cast<int>(each["rank"]),
                                           .shuffle = each["shuffle"] != 0,
                                           .seed = each["seed"],
                                           .drop_last = each["drop_last"] != 0});
    sampler.set_epoch(each["epoch"]);
    ASSERT_EQ(to_numbers(sampler.indices()), each.numbers) << each.line;
    ASSERT_EQ(sampler.size(), static_cast<std::int64_t>(each.numbers.size())) << each.line;
  }
}

TEST_F(SamplerParity, RandomSamplerIndexForIndexAndGeneratorsAfterwards) {
  const auto cases = cases_of("random");
  ASSERT_GE(cases.size(), 150U);
  for (const auto& each : cases) {
    RandomSamplerOptions options{.replacement = each["replacement"] != 0, .generator = own_generator(each)};
    if (each["num_samples"] >= 0) options.num_samples = each["num_samples"];
    torch::manual_seed(static_cast<std::uint64_t>(each["default_seed"]));
    const RandomSampler sampler(each["n"], options);
    auto found = to_numbers(sampler.indices());
    // The same pass again in small reads, like those of a loader. A read past the end finishes a pass.
    const auto pass = sampler.iter();
    for (std::int64_t index = 0; pass->read({&index, 1}) == 1;) found.push_back(index);
    ASSERT_EQ(sampler.size(), each["length"]) << each.line;
    ASSERT_EQ(found, each.numbers) << each.line;
    ASSERT_EQ(next_number(), each["default_next"]) << each.line;
    if (options.generator) {
      ASSERT_EQ(next_number(options.generator), each["own_next"]) << each.line;
    }
  }
}

// Splits the numbers of a case at the -1 between what describes the sampler and what it yields.
std::pair<Numbers, Numbers> split_numbers(const SamplerCase& each) {
  const auto middle = std::ranges::find(each.numbers, -1);
  return {Numbers(each.numbers.begin(), middle), Numbers(middle + 1, each.numbers.end())};
}

// A pass, then the first indices of a second one, and the numbers that the generators give afterwards.
void check_two_passes(const SamplerCase& each, const Sampler& sampler, const Numbers& expected,
                      const std::optional<at::Generator>& own) {
  torch::manual_seed(static_cast<std::uint64_t>(each["default_seed"]));
  auto found = to_numbers(sampler.indices());
  ASSERT_EQ(sampler.size(), each["length"]) << each.line;
  ASSERT_EQ(sampler.uses_default_generator(), !own) << each.line;
  const auto pass = sampler.iter();
  for (std::int64_t i = 0, index = 0; i < each["taken"] && pass->read({&index, 1}) == 1; ++i) {
    found.push_back(index);
  }
  ASSERT_EQ(found, expected) << each.line;
  ASSERT_EQ(next_number(), each["default_next"]) << each.line;
  if (own) {
    ASSERT_EQ(next_number(own), each["own_next"]) << each.line;
  }
}

TEST_F(SamplerParity, SubsetRandomSamplerIndexForIndexAndGeneratorsAfterwards) {
  const auto cases = cases_of("subset");
  ASSERT_GE(cases.size(), 500U);
  for (const auto& each : cases) {
    const auto [indices, expected] = split_numbers(each);
    const auto own = own_generator(each);
    check_two_passes(each, SubsetRandomSampler(indices, {.generator = own}), expected, own);
    if (HasFatalFailure()) return;
  }
}

TEST_F(SamplerParity, WeightedRandomSamplerIndexForIndexAndGeneratorsAfterwards) {
  const auto cases = cases_of("weighted");
  ASSERT_GE(cases.size(), 500U);
  for (const auto& each : cases) {
    const auto [thousandths, expected] = split_numbers(each);
    std::vector<double> weights;
    for (const auto weight : thousandths) weights.push_back(static_cast<double>(weight) / 1000);
    const auto own = own_generator(each);
    const WeightedRandomSampler sampler(weights, each["num_samples"],
                                        {.replacement = each["replacement"] != 0, .generator = own});
    check_two_passes(each, sampler, expected, own);
    if (HasFatalFailure()) return;
  }
}

TEST_F(SamplerParity, BatchSamplerBatchForBatch) {
  const auto cases = cases_of("batch");
  ASSERT_GE(cases.size(), 100U);
  for (const auto& each : cases) {
    torch::manual_seed(static_cast<std::uint64_t>(each["default_seed"]));
    std::shared_ptr<Sampler> inner = std::make_shared<SequentialSampler>(each["n"]);
    if (each["shuffle"] != 0) inner = std::make_shared<RandomSampler>(each["n"]);
    const BatchSampler sampler(inner, each["batch_size"], each["drop_last"] != 0);
    Numbers found;
    const auto pass = sampler.iter();
    for (auto batch = pass->next(); batch.defined(); batch = pass->next()) {
      const auto indices = to_numbers(batch);
      found.insert(found.end(), indices.begin(), indices.end());
      found.push_back(-1);
    }
    ASSERT_EQ(found, each.numbers) << each.line;
    ASSERT_EQ(sampler.size(), each["length"]) << each.line;
  }
}

}  // namespace
}  // namespace lockstep::data
