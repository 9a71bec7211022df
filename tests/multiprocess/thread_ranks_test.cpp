// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are threads of one process. Each test runs in a process of its own, with a watchdog.
#include <atomic>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expect_passes_alone(const testing::Scenario& scenario) {
  testing::expect_all_passed(
      testing::run_ranks(scenario, {.world_size = 1, .env = {{"OMP_NUM_THREADS", ""}}}));
}

const testing::Scenario collectives("threads: collectives", [] {
  for (const char* backend : {"shm", "gloo", "auto"}) {
    std::atomic<int> ran = 0;
    spawn_threads(4,
                  [&](Context& context) {
                    EXPECT_EQ(get_rank(), context.rank());
                    EXPECT_EQ(get_world_size(), 4);
                    EXPECT_EQ(get_local_rank(), context.rank());
                    EXPECT_EQ(current_world().rank, context.rank());
                    EXPECT_EQ(is_main_process(), context.rank() == 0);
                    auto values = torch::full({100'000}, static_cast<double>(context.rank()), at::kFloat);
                    default_group().all_reduce(values);
                    EXPECT_TRUE(values.eq(6).all().item<bool>());
                    auto shared = context.group().backend()->supportsTensorAlloc(0)
                                      ? context.group().backend()->allocateTensor(1000, at::kFloat)
                                      : torch::empty({1000});
                    shared.fill_(context.rank());
                    context.group().all_reduce(shared, ReduceOp::MAX);
                    EXPECT_TRUE(shared.eq(3).all().item<bool>());
                    EXPECT_THAT(context.group().all_gather_object(std::to_string(context.rank())),
                                ::testing::ElementsAre("0", "1", "2", "3"));
                    const auto pair = context.rank() < 2 ? new_group({0, 1}) : new_group({0, 1});
                    if (pair) {
                      auto one = torch::ones({3});
                      pair.all_reduce(one);
                      EXPECT_EQ(one[0].item<float>(), 2);
                    }
                    EXPECT_EQ(context.main_process_first([&] { return context.rank(); }), context.rank());
                    context.barrier();
                    ++ran;
                  },
                  {.backend = backend});
    EXPECT_EQ(ran, 4);
    EXPECT_FALSE(is_initialized());
    EXPECT_EQ(get_world_size(), 1);
  }
});

TEST(ThreadRanks, MakeAllCollectivesWithAnyBackend) { expect_passes_alone(collectives); }

const testing::Scenario random_numbers("threads: random numbers", [] {
  const auto draw = [] {
    auto net = torch::nn::Dropout();
    return torch::cat({torch::rand({4}), torch::randn({3}), torch::randperm(9).to(at::kFloat),
                       torch::randint(100, {5}).to(at::kFloat), net->forward(torch::ones({16})),
                       torch::nn::Linear(3, 2)->weight.detach().flatten(), torch::ones({2}).uniform_(),
                       torch::multinomial(torch::ones({20}), 5).to(at::kFloat),
                       torch::bernoulli(torch::full({8}, 0.5))});
  };
  torch::manual_seed(5);
  const auto alone = draw();
  const auto seeded_otherwise = [&](int rank) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
    return draw();
  };
  const std::vector<at::Tensor> others{seeded_otherwise(0), seeded_otherwise(1), seeded_otherwise(2)};
  torch::manual_seed(5);
  std::vector<at::Tensor> inherited(3);
  std::vector<at::Tensor> own(3);
  spawn_threads(3, [&](Context& context) {
    const auto rank = static_cast<std::size_t>(context.rank());
    inherited[rank] = draw();
    context.barrier();
    manual_seed(100 + rank);
    own[rank] = draw();
    // Also with explicit generators.
    const auto given = at::make_generator<at::CPUGeneratorImpl>(7);
    const auto mine = at::make_generator<at::CPUGeneratorImpl>(7);
    EXPECT_TRUE(torch::equal(torch::rand({4}, given), torch::rand({4}, mine)));
    EXPECT_NE(default_generator(), at::detail::getDefaultCPUGenerator());
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(torch::equal(inherited[rank], alone)) << rank;
    EXPECT_TRUE(torch::equal(own[rank], others[rank])) << rank;
  }
  EXPECT_TRUE(torch::equal(draw(), alone)) << "the process's generator was touched";
  EXPECT_EQ(default_generator(), at::detail::getDefaultCPUGenerator());
});

TEST(ThreadRanks, HaveTheirOwnRandomNumbers) { expect_passes_alone(random_numbers); }

struct Failing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Leaving many groups takes a while, in which the others fail in their turn.
const testing::Scenario first_error("threads: first error", [] {
  const auto run = [] {
    spawn_threads(3,
                  [](Context& context) {
                    std::vector<ProcessGroup> groups;
                    for (int i = 0; i < 6; ++i) groups.push_back(context.new_group({0, 1, 2}));
                    if (context.rank() == 1) throw Failing("the cause");
                    groups.front().barrier();
                  },
                  {.backend = "gloo"});
  };
  EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("rank 1 of 3"), HasSubstr("the cause"))));
});

TEST(ThreadRanks, ReportTheCauseNotItsConsequence) { expect_passes_alone(first_error); }

const testing::Scenario loaders("threads: loaders", [] {
  std::vector<std::vector<std::int64_t>> seen(2);
  spawn_threads(2, [&](Context& context) {
    data::DataLoader loader(data::TensorDataset(torch::arange(10), torch::arange(10)),
                            {.batch_size = 3, .shuffle = true});
    loader.set_epoch(1);
    for (auto& [values, labels] : loader) {
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        seen[static_cast<std::size_t>(context.rank())].push_back(values[i].item<std::int64_t>());
      }
    }
  });
  auto all = seen[0];
  all.insert(all.end(), seen[1].begin(), seen[1].end());
  EXPECT_EQ(seen[0].size(), 5U);
  EXPECT_THAT(all, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
});

TEST(ThreadRanks, LoadersGiveEachItsShare) { expect_passes_alone(loaders); }

const testing::Scenario failures("threads: failures", [] {
  for (const char* backend : {"shm", "gloo"}) {
    std::atomic<int> lost = 0;
    const auto run = [&] {
      spawn_threads(3,
                    [&](Context& context) {
                      context.barrier();
                      if (context.rank() == 1) throw Failing("the disk is full");
                      try {
                        auto values = torch::ones({1000});
                        context.group().all_reduce(values);
                      } catch (const PeerLost&) {
                        ++lost;
                        throw;
                      }
                    },
                    {.backend = backend});
    };
    EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("rank 1 of 3"), HasSubstr("the disk is full"))));
    EXPECT_EQ(lost, 2) << backend;
    try {
      run();
    } catch (const Error& error) {
      EXPECT_THROW(std::rethrow_if_nested(error), Failing);
    }
  }
});

TEST(ThreadRanks, AThrowingRankStopsTheOthersAndItsErrorIsThrown) { expect_passes_alone(failures); }

const testing::Scenario failed_meeting("threads: failed meeting", [] {
  for (const char* backend : {"shm", "gloo"}) {
    const auto run = [&] {
      spawn_threads(3,
                    [](Context& context) {
                      if (context.rank() == 2) throw Failing("no new group for me");
                      context.new_group({0, 1, 2});
                    },
                    {.backend = backend});
    };
    EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("rank 2 of 3"), HasSubstr("no new group for me"))));
  }
});

TEST(ThreadRanks, NoRankWaitsForAFailedRank) { expect_passes_alone(failed_meeting); }

const testing::Scenario refused("threads: refused", [] {
  const auto none = [](Context&) {};
  EXPECT_THAT([&] { spawn_threads(0, none); }, ThrowsMessage<ArgumentError>(HasSubstr("world_size is 0")));
  EXPECT_THAT([&] { spawn_threads(2, none, {.devices = {at::kCPU}}); },
              ThrowsMessage<ArgumentError>(HasSubstr("1 devices for 2 ranks")));
  EXPECT_THAT([&] { spawn_threads(2, none, {.backend = "carrier pigeon"}); },
              ThrowsMessage<ArgumentError>(HasSubstr("carrier pigeon")));
  EXPECT_THAT([&] { spawn_threads(2, none, {.threads_per_rank = 0}); },
              ThrowsMessage<ArgumentError>(HasSubstr("threads_per_rank is 0; it must be 1 or more")));
  spawn_threads(2, [&](Context&) {
    EXPECT_THAT([&] { static_cast<void>(init()); }, ThrowsMessage<ArgumentError>(HasSubstr("already")));
    EXPECT_THAT([&] { spawn_threads(2, none); }, ThrowsMessage<ArgumentError>(HasSubstr("already")));
  });
});

TEST(ThreadRanks, InvalidUseIsRejected) { expect_passes_alone(refused); }

const testing::Scenario beside("threads: beside a context", [] {
  const auto context = init();
  spawn_threads(2, [](Context& inner) {
    EXPECT_EQ(inner.world_size(), 2);
    EXPECT_EQ(get_world_size(), 2);
    inner.barrier();
  });
  EXPECT_EQ(get_world_size(), 1);
  context.barrier();
});

TEST(ThreadRanks, CoexistWithTheContextOfTheProcess) { expect_passes_alone(beside); }

const testing::Scenario intra_op("threads: intra-op", [] {
  at::set_num_threads(3);
  spawn_threads(2, [](Context&) { EXPECT_EQ(at::get_num_threads(), 5); }, {.threads_per_rank = 5});
  EXPECT_EQ(at::get_num_threads(), 3);
});

TEST(ThreadRanks, HaveTheRequestedIntraOpThreads) { expect_passes_alone(intra_op); }

const testing::Scenario hanging("threads: hanging", [] {
  std::atomic<bool> done = false;
  const auto run = [&] {
    spawn_threads(2,
                  [&](Context& context) {
                    if (context.rank() == 1) {
                      while (!done) std::this_thread::yield();
                      return;
                    }
                    try {
                      context.barrier();
                    } catch (...) {
                      done = true;
                      throw;
                    }
                  },
                  {.timeout = std::chrono::seconds(2)});
  };
  EXPECT_THAT(run, ThrowsMessage<Error>(AllOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 (thread "),
                                              HasSubstr("its thread is running"))));
});

TEST(ThreadRanks, AHangingThreadIsNamed) { expect_passes_alone(hanging); }

}  // namespace
}  // namespace lockstep
