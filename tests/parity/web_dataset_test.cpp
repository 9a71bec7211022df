// SPDX-License-Identifier: BSD-3-Clause
// Shards that Python draws: WebDataset groups the same samples as webdataset, and ShardSampler has its
// shuffle.
#include <string>

#include <gtest/gtest.h>

#include <lockstep/data/web_dataset.h>
#include <lockstep/serialize/torch_file.h>

#include "data/shards.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using Integers = std::vector<std::int64_t>;

std::vector<std::string> texts_of(const Value& list) {
  std::vector<std::string> texts;
  for (const auto& item : list.as_items()) texts.push_back(item.as_string());
  return texts;
}

Integers integers_of(const Value& list) {
  Integers integers;
  for (const auto& item : list.as_items()) integers.push_back(item.as_int());
  return integers;
}

std::vector<std::filesystem::path> shards_of(const Dict& drawn) {
  const auto names = texts_of(drawn.at("shards"));
  return {names.begin(), names.end()};
}

void expect_equal_samples(const data::WebDataset& dataset, const Dict& expected) {
  const auto keys = texts_of(expected.at("keys"));
  const auto urls = texts_of(expected.at("urls"));
  const auto fields = expected.at("fields").as_items();
  ASSERT_EQ(dataset.size(), static_cast<std::int64_t>(keys.size()));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto sample = dataset.sample(static_cast<std::int64_t>(i));
    EXPECT_EQ(sample.key, keys[i]);
    EXPECT_EQ(sample.shard, urls[i]);
    const auto& contents = fields[i].as_dict();
    EXPECT_EQ(sample.fields.size(), contents.size());
    for (const auto& [extension, bytes] : contents) {
      ASSERT_TRUE(sample.fields.contains(extension.as_string())) << keys[i] << " " << extension.as_string();
      EXPECT_TRUE(at::equal(sample.fields.at(extension.as_string()), bytes.as_tensor()));
    }
  }
}

// The oracle runs once for all the tests of this file.
class WebDatasetParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    run_python("parity/web_dataset_cases.py", {.args = {folder_->path().string()}});
    cases_ = load(folder_->file("cases.pt"));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static const std::vector<Value>& cases(const char* kind) { return cases_[kind].as_items(); }

 private:
  static inline std::unique_ptr<TempFolder> folder_{};
  static inline Value cases_{};
};

TEST_F(WebDatasetParity, GroupsTheFilesOfTarArchivesAsWebdataset) {
  int refused = 0;
  std::int64_t samples = 0;
  for (const auto& each : cases("shards")) {
    const auto& drawn = each.as_dict();
    SCOPED_TRACE(drawn.at("shards").as_items().front().as_string());
    const bool is_empty = !drawn.contains("error") && drawn.at("keys").as_items().empty();
    if (drawn.contains("error") || is_empty) {
      EXPECT_THROW(data::WebDataset(shards_of(drawn)), DataError);
      ++refused;
    } else {
      const data::WebDataset dataset(shards_of(drawn));
      expect_equal_samples(dataset, drawn);
      samples += dataset.size();
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(samples, 500);
}

TEST_F(WebDatasetParity, ExpandsBracesAsWebdataset) {
  for (const auto& each : cases("patterns")) {
    const auto& drawn = each.as_dict();
    const auto pattern = drawn.at("pattern").as_string();
    EXPECT_EQ(data::expand_braces(pattern), texts_of(drawn.at("names"))) << pattern;
  }
}

TEST_F(WebDatasetParity, OrdersSamplesByTheShuffleBufferOfWebdataset) {
  for (const auto& each : cases("orders")) {
    const auto& drawn = each.as_dict();
    data::ShardSampler sampler(integers_of(drawn.at("sizes")),
                               {.num_replicas = 1,
                                .rank = 0,
                                .seed = drawn.at("seed").as_int(),
                                .shuffle_buffer = drawn.at("shuffle_buffer").as_int(),
                                .pieces = drawn.at("pieces").as_int()});
    sampler.set_epoch(drawn.at("epoch").as_int());
    const auto order = sampler.indices();
    const auto* begin = order.const_data_ptr<std::int64_t>();
    EXPECT_EQ(Integers(begin, begin + order.numel()), integers_of(drawn.at("order")));
  }
}

}  // namespace
}  // namespace lockstep::testing
