// SPDX-License-Identifier: BSD-3-Clause
// Workers of a loader that throw or hang.
#include <atomic>
#include <latch>
#include <semaphore>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "unit/data/made_dataset.h"

namespace lockstep::data::worker_failures_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(LoaderWorkers, RethrowExceptionsOfGetBatchAtTheirBatch) {
  DataLoader loader(dataset_of(6,
                               [](const at::Tensor& indices) {
                                 const auto index = indices.item<std::int64_t>();
                                 if (index == 2) throw DataError("sample 2 is damaged");
                                 if (index == 4) indices.select(0, 9);
                                 return indices.clone();
                               }),
                    {.num_workers = 2});
  auto batch = loader.begin();
  ++batch;
  EXPECT_THAT([&] { ++batch; }, ThrowsMessage<DataError>(AllOf(
                                    HasSubstr("Caught lockstep::DataError in DataLoader worker thread "),
                                    HasSubstr("batch 2 of the pass: sample 2 is damaged"))));
  ++batch;
  EXPECT_EQ(batch->item<std::int64_t>(), 3);
  EXPECT_THAT([&] { ++batch; }, ThrowsMessage<c10::IndexError>(HasSubstr("in DataLoader worker thread ")));
  ++batch;
  EXPECT_EQ(batch->item<std::int64_t>(), 5);
  EXPECT_EQ(loader.position().batches, 6);
}

struct Odd {
  int number;
};

TEST(LoaderWorkers, RethrowOtherObjectsUnchanged) {
  DataLoader loader(dataset_of(1,
                               [](const at::Tensor& indices) {
                                 if (indices.numel() == 1) throw Odd{7};
                                 return indices;
                               }),
                    {.num_workers = 1});
  try {
    loader.begin();
    FAIL();
  } catch (const Odd& odd) {
    EXPECT_EQ(odd.number, 7);
  }
}

struct BrokenSource : BatchSource {
  struct Stream : BatchStream {
    int left = 3;
    at::Tensor next() override {
      if (left-- == 0) throw DataError("the order ends here");
      return at::zeros({1}, at::kLong);
    }
  };
  std::unique_ptr<BatchStream> iter() const override { return std::make_unique<Stream>(); }
  std::int64_t size() const override { return 9; }
};

TEST(LoaderWorkers, RethrowSamplerErrorsAfterEarlierBatches) {
  DataLoader loader(hundred(), {.batch_sampler = std::make_shared<BrokenSource>(), .num_workers = 2});
  auto batch = loader.begin();
  ++batch;
  ++batch;
  EXPECT_THAT([&] { ++batch; }, ThrowsMessage<DataError>(HasSubstr("the order ends here")));
}

// A batch that blocks until it is released.
struct Hanging {
  std::int64_t index;
  std::binary_semaphore& go_on;
  std::latch& ended;

  std::int64_t size() const { return 8; }
  at::Tensor get_batch(const at::Tensor& indices) const {
    if (indices[0].item<std::int64_t>() == index) {
      go_on.acquire();
      ended.count_down();
    }
    return indices.clone();
  }
};

TEST(LoaderWorkers, NameAndAbandonHungWorkersAfterTheTimeout) {
  std::binary_semaphore go_on(0);
  std::latch ended(1);
  {
    DataLoader loader(Hanging{2, go_on, ended},
                      {.batch_size = 2, .num_workers = 2, .timeout = milliseconds(1000)});
    auto batch = loader.begin();
    EXPECT_THAT([&] { ++batch; },
                ThrowsMessage<TimeoutError>(
                    AllOf(HasSubstr("DataLoader timed out after 1 seconds: worker "),
                          HasSubstr(" s; check what it waits for"),
                          HasSubstr("has been reading batch 1 of the pass, with indices [2, 3]"))));
  }
  go_on.release();
  ended.wait();
}

TEST(LoaderWorkers, ReplacePersistentWorkersWhenOneHangs) {
  std::binary_semaphore go_on(0);
  std::latch ended(1);
  std::atomic<bool> hung = false;
  DataLoader loader(dataset_of(8,
                               [&](const at::Tensor& indices) {
                                 if (!hung.exchange(true)) {
                                   go_on.acquire();
                                   ended.count_down();
                                 }
                                 return indices.clone();
                               }),
                    {.num_workers = 1, .timeout = milliseconds(1000), .persistent_workers = true});
  EXPECT_THROW(loader.begin(), TimeoutError);
  EXPECT_EQ(one_pass(loader).size(), 8U);
  go_on.release();
  ended.wait();
}

}  // namespace
}  // namespace lockstep::data::worker_failures_test
