// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <semaphore>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/loader_options.h>

#include "base/process_state.h"
#include "unit/data/made_dataset.h"

namespace lockstep::data::loader_workers_test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

void expect_same(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(at::equal(left[i], right[i])) << "batch " << i;
}

// Noise on every sample: what an augmentation draws.
auto noisy() {
  return dataset_of(60, [](const at::Tensor& indices) {
    return indices + at::rand({indices.numel(), 3}).sum(1);
  });
}

TEST(LoaderWorkers, GiveTheSameBatchesInTheSameOrder) {
  torch::manual_seed(5);
  DataLoader plain(hundred(), {.batch_size = 7, .shuffle = true});
  std::vector<std::vector<at::Tensor>> expected;
  for (int epoch = 0; epoch < 3; ++epoch) expected.push_back(one_pass(plain));
  for (const int workers : {1, 2, 5}) {
    torch::manual_seed(5);
    DataLoader loader(hundred(), {.batch_size = 7, .shuffle = true, .num_workers = workers});
    for (const auto& batches : expected) expect_same(one_pass(loader), batches);
  }
}

TEST(LoaderWorkers, UseTheDefaultGeneratorLikeALoaderWithoutWorkers) {
  torch::manual_seed(5);
  DataLoader plain(hundred(), {.batch_size = 7, .shuffle = true});
  one_pass(plain);
  const auto expected = at::rand({4});
  torch::manual_seed(5);
  DataLoader loader(hundred(), {.batch_size = 7, .shuffle = true, .num_workers = 2});
  one_pass(loader);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(LoaderWorkers, DrawTheSameNumbersForAnyNumberOfWorkers) {
  std::vector<std::vector<at::Tensor>> first;
  for (const int workers : {1, 2, 4}) {
    torch::manual_seed(3);
    DataLoader loader(noisy(), {.batch_size = 4, .shuffle = true, .num_workers = workers});
    const auto one = one_pass(loader);
    const auto two = one_pass(loader);
    if (first.empty()) first = {one, two};
    expect_same(one, first[0]);
    expect_same(two, first[1]);
  }
}

TEST(LoaderWorkers, DrawDifferentNumbersForEachBatchPassEpochAndRank) {
  const auto draws = dataset_of(
      6, [](const at::Tensor& indices) { return at::randint(1LL << 40, {indices.numel()}, at::kLong); });
  std::set<std::int64_t> seen;
  std::size_t count = 0;
  for (const int rank : {0, 1}) {
    set_current_world({.rank = rank, .size = 2});
    DataLoader loader(draws, {.num_workers = 1});
    for (const int epoch : {0, 0, 1}) {
      loader.set_epoch(epoch);
      for (const auto& batch : loader) {
        seen.insert(batch.item<std::int64_t>());
        ++count;
      }
    }
  }
  set_current_world({});
  EXPECT_EQ(count, 18U);
  EXPECT_EQ(seen.size(), count);
}

TEST(LoaderWorkers, NeverExceedThePrefetchLimit) {
  std::atomic<int> made = 0;
  DataLoader loader(dataset_of(50,
                               [&](const at::Tensor& indices) {
                                 ++made;
                                 return indices.clone();
                               }),
                    {.num_workers = 2, .prefetch_factor = 3});
  int given = 0;
  for (auto& batch : loader) {
    static_cast<void>(batch);
    ++given;
    EXPECT_LE(made, given + 6);
  }
  EXPECT_EQ(made, 50);
}

TEST(LoaderWorkers, EndWithAnAbandonedPass) {
  std::atomic<int> made = 0;
  std::atomic<int> now = 0;
  DataLoader loader(dataset_of(1000,
                               [&](const at::Tensor& indices) {
                                 ++now;
                                 ++made;
                                 auto batch = indices.clone();
                                 --now;
                                 return batch;
                               }),
                    {.num_workers = 3});
  for (auto& batch : loader) {
    if (batch.item<std::int64_t>() == 4) break;
  }
  EXPECT_EQ(now, 0);
  EXPECT_LE(made, 5 + 6);
  EXPECT_EQ(one_pass(loader).size(), 1000U);
}

TEST(LoaderWorkers, CallTheirInitFunctionFirst) {
  for (const bool persistent : {false, true}) {
    std::mutex mutex;
    std::multiset<int> ids;
    const auto note = [&](int id) {
      const std::lock_guard lock(mutex);
      ids.insert(id);
      EXPECT_EQ(get_worker_info()->id, id);
    };
    {
      DataLoader loader(hundred(),
                        {.num_workers = 3, .worker_init_fn = note, .persistent_workers = persistent});
      one_pass(loader);
      one_pass(loader);
    }
    if (persistent) {
      EXPECT_THAT(ids, ElementsAre(0, 1, 2));
    } else {
      EXPECT_THAT(ids, ElementsAre(0, 0, 1, 1, 2, 2));
    }
  }
}

TEST(LoaderWorkers, ReportErrorsOfTheInitFunction) {
  DataLoader loader(hundred(),
                    {.num_workers = 1, .worker_init_fn = [](int) { throw DataError("no shard for me"); }});
  EXPECT_THAT([&] { loader.begin(); },
              ThrowsMessage<DataError>(HasSubstr("in worker_init_fn of worker 0: no shard for me")));
}

struct Informed {
  std::int64_t size() const { return 4; }
  std::vector<std::uint64_t> get_batch(const at::Tensor& /*indices*/) const {
    const auto info = get_worker_info();
    EXPECT_EQ(info->num_workers, 2);
    EXPECT_EQ(&info->dataset<Informed>(), this);
    EXPECT_THAT([&] { info->dataset<TensorDataset>(); },
                ThrowsMessage<ArgumentError>(HasSubstr("TensorDataset")));
    return {info->seed - static_cast<std::uint64_t>(info->id), info->batch_seed};
  }
};

TEST(LoaderWorkers, HaveWorkerInfo) {
  EXPECT_FALSE(get_worker_info());
  DataLoader loader(Informed(), {.num_workers = 2,
                                 .generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{4})});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{4});
  const auto base = at::empty({}, at::kLong).random_(generator).item<std::int64_t>();
  std::set<std::uint64_t> seeds;
  for (auto& batch : loader) {
    EXPECT_EQ(batch[0], static_cast<std::uint64_t>(base));
    seeds.insert(batch[1]);
  }
  EXPECT_EQ(seeds.size(), 4U);
}

TEST(LoaderWorkers, OutOfOrderYieldReadyBatches) {
  std::binary_semaphore second_is_there(0);
  DataLoader loader(dataset_of(4,
                               [&](const at::Tensor& indices) {
                                 if (indices.item<std::int64_t>() == 0) second_is_there.acquire();
                                 return indices.clone();
                               }),
                    {.num_workers = 2, .in_order = false});
  Numbers order;
  for (auto& batch : loader) {
    order.push_back(batch.item<std::int64_t>());
    if (order.size() == 1) {
      EXPECT_THAT([&] { loader.position(); }, ThrowsMessage<ArgumentError>(HasSubstr("in_order")));
      second_is_there.release();
    }
  }
  EXPECT_NE(order.front(), 0);
  std::ranges::sort(order);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(LoaderWorkers, ResumeInAPassBitForBit) {
  const auto options = [](int workers, bool persistent) {
    return DataLoaderOptions{.batch_size = 4,
                             .shuffle = true,
                             .num_workers = workers,
                             .generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{6}),
                             .persistent_workers = persistent};
  };
  for (const bool persistent : {false, true}) {
    DataLoader whole(noisy(), options(2, persistent));
    one_pass(whole);
    const auto second = one_pass(whole);
    const auto third = one_pass(whole);

    DataLoader left(noisy(), options(2, persistent));
    one_pass(left);
    LoaderPosition position;
    std::vector<at::Tensor> batches;
    for (auto& batch : left) {
      batches.push_back(batch);
      if (batches.size() == 5) break;
    }
    position = left.position();
    EXPECT_EQ(position.batches, 5);
    EXPECT_EQ(position.samples, 20);

    DataLoader resumed(noisy(), options(3, persistent));
    resumed.seek(position);
    for (auto& batch : resumed) batches.push_back(batch);
    expect_same(batches, second);
    expect_same(one_pass(resumed), third);
  }
}

TEST(LoaderWorkers, ServeSeveralPassesAtOnce) {
  for (const bool persistent : {false, true}) {
    DataLoader loader(hundred(), {.batch_size = 50, .num_workers = 2, .persistent_workers = persistent});
    auto outer = loader.begin();
    EXPECT_EQ(one_pass(loader).size(), 2U);
    ++outer;
    EXPECT_TRUE(at::equal(outer->data, at::arange(50, 100)));
  }
}

TEST(LoaderWorkers, UseOneThreadEach) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  DataLoader loader(dataset_of(2, [](const at::Tensor&) { return at::get_num_threads(); }),
                    {.num_workers = 1});
  for (const int threads : loader) EXPECT_EQ(threads, 1);
  EXPECT_EQ(at::get_num_threads(), 4);
  std::thread([] { EXPECT_EQ(at::get_num_threads(), 4); }).join();
  at::set_num_threads(before);
}

void expect_refused(const DataLoaderOptions& options, const std::string& why) {
  EXPECT_THAT([&] { DataLoader(hundred(), options); }, ThrowsMessage<ArgumentError>(HasSubstr(why)));
}

TEST(LoaderWorkers, RejectWorkerOptionsWithoutWorkers) {
  expect_refused({.num_workers = -1}, "num_workers should be non-negative, but it is -1");
  expect_refused({.prefetch_factor = 2}, "prefetch_factor needs num_workers > 0");
  expect_refused({.persistent_workers = true}, "persistent_workers needs num_workers > 0");
  expect_refused({.timeout = milliseconds(5)}, "timeout needs num_workers > 0");
  expect_refused({.num_workers = 1, .prefetch_factor = 0}, "prefetch_factor should be positive, but it is 0");
}

TEST(LoaderWorkers, WarnOfPinningWithoutAnAccelerator) {
  ::testing::internal::CaptureStderr();
  DataLoader loader(hundred(), {.batch_size = 50, .pin_memory = true, .device = at::kCPU});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no accelerator is found"));
  EXPECT_EQ(one_pass(loader).size(), 2U);
}

TEST(LoaderWorkers, RejectAMissingDevice) {
  expect_refused({.device = c10::Device(c10::kXPU, 0)}, "there is no xpu:0");
}

}  // namespace
}  // namespace lockstep::data::loader_workers_test
