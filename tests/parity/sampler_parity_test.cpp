// SPDX-License-Identifier: BSD-3-Clause
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
    RandomSamplerOptions options{.replacement = each["replacement"] != 0};
    if (each["num_samples"] >= 0) options.num_samples = each["num_samples"];
    if (each["own_seed"] >= 0) {
      options.generator =
          at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(each["own_seed"]));
    }
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

TEST_F(SamplerParity, BatchSamplerBatchForBatch) {
  const auto cases = cases_of("batch");
  ASSERT_GE(cases.size(), 100U);
  for (const auto& each : cases) {
    torch::manual_seed(static_cast<std::uint64_t>(each["default_seed"]));
    std::shared_ptr<Sampler> inner = std::make_shared<SequentialSampler>(each["n"]);
    if (each["shuffle"] != 0) inner = std::make_shared<RandomSampler>(each["n"]);
    const BatchSampler sampler(inner,
                               {.batch_size = each["batch_size"], .drop_last = each["drop_last"] != 0});
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
