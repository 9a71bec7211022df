// SPDX-License-Identifier: BSD-3-Clause
// Which copies a loader queues where, on a device that is none: what a GPU does of it is for another test.
#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "unit/data/fake_device.h"

namespace lockstep::data {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class LoaderDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::register_fake_device();
    testing::take_fake_log();
  }
};

TensorDataset twelve() { return {at::arange(12), at::arange(12) * 10}; }

TEST_F(LoaderDevice, PinsBatchesAndCopiesOnlyOnRequest) {
  for (const int workers : {0, 2}) {
    DataLoader loader(twelve(), {.batch_size = 4, .num_workers = workers, .pin_memory = true});
    for (auto& [data, target] : loader) {
      EXPECT_TRUE(data.is_pinned());
      EXPECT_TRUE(target.is_pinned());
    }
    EXPECT_THAT(testing::take_fake_log(), ElementsAre());
  }
}

TEST_F(LoaderDevice, CopiesFromPinnedMemoryOnASideStream) {
  DataLoader loader(twelve(), {.batch_size = 12, .device = testing::fake_device()});
  auto batch = loader.begin();
  EXPECT_EQ(batch->data.device(), testing::fake_device());
  EXPECT_THAT(
      testing::take_fake_log(),
      ElementsAre("copy stream=1 pinned non_blocking", "copy stream=1 pinned non_blocking", "record stream=1",
                  "block stream=0", "keep stream=0", "block stream=0", "keep stream=0"));
  EXPECT_TRUE(at::equal(batch->target.cpu(), at::arange(12) * 10));
}

TEST_F(LoaderDevice, CopiesTheNextBatchBeforeTheLoopAsksForIt) {
  DataLoader loader(TensorDataset(at::arange(400), at::arange(400)),
                    {.num_workers = 1, .device = testing::fake_device()});
  std::int64_t given = 0;
  std::int64_t copies = 0;
  std::int64_t ahead = 0;
  for (auto& [data, target] : loader) {
    EXPECT_EQ(data.cpu().item<std::int64_t>(), given);
    ++given;
    for (const auto& line : testing::take_fake_log()) copies += line.starts_with("copy") ? 1 : 0;
    EXPECT_EQ(loader.position().batches, given);
    EXPECT_LE(copies, 2 * (given + 1)) << "one batch is on the device beside the one in hand";
    if (copies == 2 * (given + 1)) ++ahead;
  }
  EXPECT_EQ(given, 400);
  EXPECT_GT(ahead, 0);
}

TEST_F(LoaderDevice, AcceptsADeviceWithoutAnIndex) {
  DataLoader loader(twelve(), {.device = c10::Device(c10::DeviceType::PrivateUse1)});
  EXPECT_EQ(loader.begin()->data.device(), testing::fake_device());
  EXPECT_THAT([] { DataLoader(twelve(), {.device = c10::Device(c10::DeviceType::PrivateUse1, 3)}); },
              ThrowsMessage<ArgumentError>(HasSubstr("there is no fake:3")));
}

struct Sentence {
  at::Tensor words;
  std::string text;

  template <typename F>
  void visit_tensors(F&& f) {
    f(words);
  }
};
using Nested = std::tuple<std::map<std::string, at::Tensor>, std::vector<Sentence>, std::int64_t>;

struct NestedData {
  std::int64_t size() const { return 2; }
  Nested get_batch(const at::Tensor& indices) const {
    return {{{"ids", indices.clone()}}, {{at::ones({3}), "one"}, {at::zeros({2}), "two"}}, 7};
  }
};

TEST_F(LoaderDevice, FindsTensorsInNestedBatches) {
  DataLoader loader(NestedData(), {.num_workers = 1, .device = testing::fake_device()});
  for (auto& [map, sentences, number] : loader) {
    EXPECT_EQ(map.at("ids").device(), testing::fake_device());
    for (const auto& sentence : sentences) EXPECT_EQ(sentence.words.device(), testing::fake_device());
    EXPECT_EQ(number, 7);
  }
}

struct Opaque {
  at::Tensor hidden;
};
struct OpaqueData {
  std::int64_t size() const { return 2; }
  Opaque get_batch(const at::Tensor& indices) const { return {indices}; }
};

TEST_F(LoaderDevice, RejectsBatchesThatAreNotAPyTree) {
  EXPECT_NO_THROW(DataLoader(OpaqueData(), {.num_workers = 1}));
  for (const bool pin : {false, true}) {
    DataLoaderOptions options{.pin_memory = pin};
    if (!pin) options.device = testing::fake_device();
    EXPECT_THAT([&] { DataLoader(OpaqueData(), options); },
                ThrowsMessage<ArgumentError>(HasSubstr("Opaque; add a visit_tensors() member")));
  }
}

TEST_F(LoaderDevice, DatasetsOnTheDeviceYieldTheSameBits) {
  for (const std::int64_t channels : {1, 3}) {
    const ImageDataset here(at::randint(256, {20, channels, 5, 4}, at::kByte), at::arange(20),
                            {.normalize = transforms::Normalize({0.1307}, {0.3081})});
    const auto there = here.to(testing::fake_device());
    EXPECT_EQ(there.images().device(), testing::fake_device());
    for (const int workers : {0, 2}) {
      const DataLoaderOptions options{
          .batch_size = 6, .num_workers = workers, .seed = 3, .device = testing::fake_device()};
      DataLoader expected(here, {.batch_size = 6, .seed = 3});
      DataLoader loader(there, options);
      auto found = loader.begin();
      for (auto& batch : expected) {
        EXPECT_EQ(found->data.device(), testing::fake_device());
        EXPECT_TRUE(at::equal(found->data.cpu().view(at::kInt), batch.data.view(at::kInt)));
        EXPECT_TRUE(at::equal(found->target.cpu(), batch.target));
        ++found;
      }
    }
  }
}

TEST_F(LoaderDevice, SendsOnlyIndicesToADatasetOnTheDevice) {
  const auto there = twelve().to(testing::fake_device());
  testing::take_fake_log();
  const auto batch = there.get_batch(at::tensor({3, 5}, at::kLong));
  EXPECT_EQ(testing::take_fake_log().front(), "copy stream=0 pinned non_blocking");
  EXPECT_TRUE(at::equal(batch.target.cpu(), at::tensor({30, 50}, at::kLong)));
}

TEST_F(LoaderDevice, WaitsForWorkQueuedByWorkers) {
  DataLoader loader(twelve().to(testing::fake_device()), {.batch_size = 12, .num_workers = 1});
  testing::take_fake_log();
  auto batch = loader.begin();
  const auto log = testing::take_fake_log();
  const std::vector<std::string> end(log.end() - 5, log.end());
  EXPECT_THAT(end, ElementsAre("record stream=0", "block stream=0", "keep stream=0", "block stream=0",
                               "keep stream=0"));
}

}  // namespace
}  // namespace lockstep::data
