// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "base/process_state.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

// The numbers rank, rank + num_replicas, ... below a limit, each with its square.
class Counter {
 public:
  Counter(std::int64_t limit, const StreamShare& share)
      : limit_(limit), next_(share.rank), step_(share.num_replicas) {}

  std::optional<Batch> next() {
    if (next_ >= limit_) return std::nullopt;
    const auto number = std::exchange(next_, next_ + step_);
    return Batch{.data = at::tensor(number, at::kLong), .target = at::tensor({number * number}, at::kLong)};
  }

 private:
  std::int64_t limit_;
  std::int64_t next_;
  std::int64_t step_;
};

struct Counting {
  std::int64_t limit;
  std::unique_ptr<Counter> iter(const StreamShare& share) const {
    return std::make_unique<Counter>(limit, share);
  }
};

// A dataset whose stream calls a function.
template <typename Next>
struct StreamOf {
  Next next_sample;
  struct Stream {
    Next next;
  };
  std::unique_ptr<Stream> iter(const StreamShare&) const {
    return std::unique_ptr<Stream>(new Stream{next_sample});
  }
};

template <typename Next>
StreamOf<Next> stream_of(Next next) {
  return {std::move(next)};
}

Numbers numbers_in(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

template <typename Loader>
std::vector<Numbers> batches_of(Loader& loader) {
  std::vector<Numbers> batches;
  for (auto& batch : loader) batches.push_back(numbers_in(batch.data));
  return batches;
}

class IterableTest : public ::testing::Test {
 protected:
  void TearDown() override { set_current_world({}); }
};

TEST_F(IterableTest, StacksSamplesInOrderForAnyNumberOfWorkers) {
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(Counting{7}, {.batch_size = 3, .num_workers = workers});
    for (int epoch = 0; epoch < 2; ++epoch) {
      EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0, 1, 2}, Numbers{3, 4, 5}, Numbers{6}));
    }
    for (auto& [data, target] : loader) EXPECT_TRUE(at::equal(target, data * data));
  }
}

TEST_F(IterableTest, AStreamThatEndsWithABatchHasNoEmptyBatch) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Counting{6}, {.batch_size = 3, .num_workers = workers});
    EXPECT_THAT(batches_of(loader), SizeIs(2));
    DataLoader empty(Counting{0}, {.batch_size = 3, .num_workers = workers});
    EXPECT_THAT(batches_of(empty), SizeIs(0));
  }
}

TEST_F(IterableTest, DropsASmallerLastBatchOnRequest) {
  DataLoader loader(Counting{7}, {.batch_size = 3, .num_workers = 2, .drop_last = true});
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{0, 1, 2}, Numbers{3, 4, 5}));
}

TEST_F(IterableTest, EachRankReadsItsShareInEachEpoch) {
  struct Shares {
    std::shared_ptr<std::vector<StreamShare>> seen = std::make_shared<std::vector<StreamShare>>();
    std::unique_ptr<Counter> iter(const StreamShare& share) const {
      seen->push_back(share);
      return std::make_unique<Counter>(7, share);
    }
  };
  set_current_world({.rank = 1, .size = 3});
  const Shares shares;
  DataLoader loader(shares, {.batch_size = 2, .num_workers = 2});
  loader.set_epoch(5);
  EXPECT_THAT(batches_of(loader), ElementsAre(Numbers{1, 4}));
  EXPECT_EQ(shares.seen->back().epoch, 5);
  DataLoader whole(shares, {.batch_size = 9, .distributed = false});
  EXPECT_THAT(batches_of(whole), ElementsAre(Numbers{0, 1, 2, 3, 4, 5, 6}));
}

TEST_F(IterableTest, WorkersCollateInParallel) {
  // Each of the first two batches waits for the other.
  struct Together : Counting {
    std::shared_ptr<std::atomic<int>> arrived = std::make_shared<std::atomic<int>>(0);
    at::Tensor collate(std::vector<Batch> samples) const {
      ++*arrived;
      while (arrived->load() < 2) std::this_thread::yield();
      return at::tensor(static_cast<std::int64_t>(samples.size()), at::kLong);
    }
  };
  DataLoader loader(Together{{8}}, {.batch_size = 4, .num_workers = 2});
  Numbers sizes;
  for (auto& batch : loader) sizes.push_back(batch.item<std::int64_t>());
  EXPECT_THAT(sizes, ElementsAre(4, 4));
}

TEST_F(IterableTest, APassContinuesInTheMiddle) {
  for (const int workers : {0, 3}) {
    DataLoader loader(Counting{20}, {.batch_size = 3, .num_workers = workers});
    const auto whole = batches_of(loader);
    auto pass = loader.begin();
    for (int i = 0; i < 2; ++i) ++pass;
    DataLoader resumed(Counting{20}, {.batch_size = 3, .num_workers = 3 - workers});
    resumed.seek(loader.position());
    EXPECT_EQ(batches_of(resumed), std::vector<Numbers>(whole.begin() + 3, whole.end()));
    EXPECT_EQ(batches_of(resumed), whole);
  }
}

TEST_F(IterableTest, AStreamCanSkipByItself) {
  struct Skipping : Counting {
    struct Stream : Counter {
      using Counter::Counter;
      void skip(std::int64_t samples) {
        EXPECT_EQ(samples, 4);
        for (int i = 0; i < 4; ++i) next();
      }
    };
    std::unique_ptr<Stream> iter(const StreamShare& share) const {
      return std::make_unique<Stream>(limit, share);
    }
  };
  DataLoader loader(Skipping{{9}}, {.batch_size = 4});
  auto pass = loader.begin();
  DataLoader resumed(Skipping{{9}}, {.batch_size = 4});
  resumed.seek(loader.position());
  EXPECT_THAT(batches_of(resumed), ElementsAre(Numbers{4, 5, 6, 7}, Numbers{8}));
}

TEST_F(IterableTest, AnotherNumberOfRanksCannotContinue) {
  DataLoader loader(Counting{20}, {.batch_size = 3});
  auto pass = loader.begin();
  const auto position = loader.position();
  set_current_world({.rank = 0, .size = 2});
  DataLoader other(Counting{20}, {.batch_size = 3});
  other.seek(position);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT([&] { other.begin(); }, ThrowsMessage<ArgumentError>(HasSubstr("the 2 ranks")));
  }
}

TEST_F(IterableTest, AnErrorOfTheStreamArrivesAtItsBatchAndEndsThePass) {
  for (const int workers : {0, 3}) {
    DataLoader loader(stream_of([next = std::int64_t{0}]() mutable -> std::optional<at::Tensor> {
                        if (next == 5) throw DataError("line 5 is damaged");
                        return at::tensor(next++, at::kLong);
                      }),
                      {.batch_size = 2, .num_workers = workers});
    std::vector<Numbers> seen;
    const auto pass = [&] {
      for (auto& batch : loader) seen.push_back(numbers_in(batch));
    };
    EXPECT_THAT(pass, ThrowsMessage<DataError>(HasSubstr("line 5 is damaged")));
    EXPECT_THAT(seen, ElementsAre(Numbers{0, 1}, Numbers{2, 3}));
  }
}

TEST_F(IterableTest, AnErrorOfOneWorkersInitDoesNotStopTheOthers) {
  DataLoader loader(Counting{100}, {.batch_size = 2, .num_workers = 3, .worker_init_fn = [](int id) {
                                      if (id == 1) throw DataError("no licence");
                                    }});
  const auto pass = [&] {
    for ([[maybe_unused]] auto& batch : loader) continue;
  };
  for (int epoch = 0; epoch < 20; ++epoch) {
    try {
      pass();  // worker 1 may have had no batch
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("no licence"));
    }
  }
}

TEST_F(IterableTest, OutOfOrderBatchesAreAllYielded) {
  for (int round = 0; round < 10; ++round) {
    DataLoader loader(Counting{101}, {.batch_size = 2, .num_workers = 4, .in_order = false});
    std::multiset<std::int64_t> seen;
    for (const auto& batch : batches_of(loader)) seen.insert(batch.begin(), batch.end());
    EXPECT_THAT(seen, SizeIs(101));
    EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 101);
  }
}

TEST_F(IterableTest, LeavingAPassEarlyEndsItsWorkers) {
  auto endless = stream_of([next = std::int64_t{0}]() mutable { return std::optional(at::tensor(next++)); });
  DataLoader loader(endless, {.batch_size = 2, .num_workers = 2, .persistent_workers = true});
  for (int pass = 0; pass < 3; ++pass) {
    for (auto& batch : loader) {
      if (batch[0].item<std::int64_t>() > 10) break;
    }
  }
}

TEST_F(IterableTest, SamplesOfDifferentShapesAreRefused) {
  DataLoader loader(
      stream_of([next = std::int64_t{1}]() mutable { return std::optional(at::zeros({next++})); }),
      {.batch_size = 2});
  EXPECT_THAT([&] { loader.begin(); }, ThrowsMessage<ArgumentError>(HasSubstr("[1] and [2]")));
}

TEST_F(IterableTest, OptionsThatNeedRandomAccessAreRefused) {
  const auto refused = [](const DataLoaderOptions& options, const char* why) {
    EXPECT_THAT([&] { DataLoader(Counting{4}, options); }, ThrowsMessage<ArgumentError>(HasSubstr(why)));
  };
  refused({.shuffle = true}, "excludes shuffle");
  refused({.sampler = std::make_shared<SequentialSampler>(4)}, "excludes sampler");
  refused({.seed = 3}, "excludes seed");
  refused({.batch_size = 0}, "batch_size should be positive");
  DataLoader loader(Counting{4});
  EXPECT_THAT([&] { loader.size(); }, ThrowsMessage<ArgumentError>(HasSubstr("not known")));
}

}  // namespace
}  // namespace lockstep::data
