// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/sampler.h>

#include "parity/sampler_case.h"
#include "support/python.h"

namespace lockstep::data {
namespace {

using testing::SamplerCase;
using Numbers = std::vector<std::int64_t>;

constexpr int kMask = 6;
enum SamplerKind { kDefault, kDistributed, kRandomReplacement, kRandomOwnGenerator };

void append(Numbers& numbers, const at::Tensor& values) {
  const auto plain = values.to(at::kLong).contiguous();
  const auto* begin = plain.const_data_ptr<std::int64_t>();
  numbers.insert(numbers.end(), begin, begin + plain.numel());
}

std::shared_ptr<Sampler> sampler_of(const SamplerCase& each) {
  const auto n = each["n"];
  switch (each["sampler"]) {
    case kDistributed:
      return std::make_shared<DistributedSampler>(
          n, DistributedSamplerOptions{.num_replicas = 3, .rank = 1, .seed = 5});
    case kRandomReplacement:
      return std::make_shared<RandomSampler>(n,
                                             RandomSamplerOptions{.replacement = true, .num_samples = 2 * n});
    case kRandomOwnGenerator: {
      const auto seed = static_cast<std::uint64_t>(each["manual_seed"] + 1);
      return std::make_shared<RandomSampler>(
          n, RandomSamplerOptions{.generator = at::make_generator<at::CPUGeneratorImpl>(seed)});
    }
    default:
      return nullptr;
  }
}

DataLoaderOptions options_of(const SamplerCase& each) {
  DataLoaderOptions options{
      .batch_size = each["batch_size"], .sampler = sampler_of(each), .drop_last = each["drop_last"] != 0};
  options.shuffle = each["shuffle"] != 0 && !options.sampler;
  options.num_workers = static_cast<int>(each["workers"]);
  options.persistent_workers = each["persistent"] != 0;
  if (each["generator"] != 0) options.generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{11});
  return options;
}

Numbers train(DataLoader<TensorDataset>& loader, std::int64_t stop_after) {
  Numbers numbers;
  for (int epoch = 0; epoch < 3; ++epoch) {
    loader.set_epoch(epoch);
    std::int64_t step = 0;
    for (auto& [data, target] : loader) {
      EXPECT_TRUE(at::equal(data * 10, target));
      append(numbers, data);
      numbers.push_back(-1);
      append(numbers, at::dropout(at::ones({kMask}), 0.5, true));
      if (++step == stop_after) break;
    }
  }
  return numbers;
}

std::vector<SamplerCase> cases_of(const std::string& kind) {
  static const auto all = testing::parse_cases(testing::run_python("parity/loader_cases.py"));
  std::vector<SamplerCase> some;
  for (const auto& each : all) {
    if (each.kind == kind) some.push_back(each);
  }
  return some;
}

TEST(LoaderParity, BatchesAndInterleavedDropoutMasks) {
  const auto cases = cases_of("loader");
  ASSERT_GE(cases.size(), 120U);
  for (const auto& each : cases) {
    torch::manual_seed(static_cast<std::uint64_t>(each["manual_seed"]));
    const auto values = at::arange(each["n"]);
    DataLoader loader(TensorDataset(values, values * 10), options_of(each));
    ASSERT_EQ(loader.size(), each["length"]) << each.line;
    ASSERT_EQ(train(loader, each["stop_after"]), each.numbers) << each.line;
  }
}

TEST(LoaderParity, NormalizedImagesToTheLastBit) {
  const auto cases = cases_of("normalize");
  ASSERT_EQ(cases.size(), 3U);
  for (const auto& each : cases) {
    const auto channels = each["channels"];
    std::vector<double> mean, std;
    for (std::int64_t i = 0; i < channels; ++i) {
      mean.push_back(static_cast<double>(each["mean" + std::to_string(i)]) / 10000);
      std.push_back(static_cast<double>(each["std" + std::to_string(i)]) / 10000);
    }
    const auto images = at::arange(256, at::kByte).view({1, 1, 16, 16}).repeat({1, channels, 1, 1});
    const ImageDataset dataset(images, at::zeros({1}, at::kLong),
                               {.normalize = transforms::Normalize(mean, std)});
    Numbers found;
    append(found, dataset.get_batch(at::zeros({1}, at::kLong)).data.view(at::kInt));
    EXPECT_EQ(found, each.numbers) << each.line;
  }
}

}  // namespace
}  // namespace lockstep::data
