// SPDX-License-Identifier: BSD-3-Clause
// A Trainer that undoes steps with a bad loss, beside one that does not get their batches.
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "checkpoint/training_state_access.h"
#include "multiprocess/trainer_points.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::functional::cross_entropy;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

torch::nn::Sequential net_with_buffers() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU(),
                               torch::nn::Dropout(0.2), torch::nn::Linear(8, 3));
}

// What a training program has. Batches are numbered from 0 over all epochs.
struct Program {
  explicit Program(TrainerOptions options)
      : trainer(ddp, optimizer, std::move(options)),
        loader(Points(), {.batch_size = 4, .shuffle = true, .seed = 5}) {
    trainer.step_scheduler(schedule);
    trainer.on_log([this](std::int64_t step, const Scalars& scalars) { losses[step] = scalars.at("loss"); });
    torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  }
  at::Tensor loss_of(Points::Batch& batch, double factor) {
    // The inputs of a bad batch spoil the statistics of the layers, too.
    return cross_entropy(ddp->forward(batch.inputs * factor), batch.targets) * factor;
  }
  // `factors`: of the loss of single batches on this rank.
  Program& fit(const std::map<int, double>& factors) {
    trainer.fit(loader, [&, number = 0](auto& batch) mutable {
      const auto factor = factors.find(number++);
      return loss_of(batch, factor == factors.end() ? 1 : factor->second);
    });
    return *this;
  }
  Program& fit_without(const std::set<int>& left_out) {
    int number = 0;
    const auto signals = trainer.begin_fit();
    while (trainer.begin_epoch()) {
      loader.set_epoch(trainer.epoch());
      for (auto& batch : loader)
        if (!left_out.contains(number++)) trainer.train_batch([&] { return loss_of(batch, 1); });
      trainer.end_epoch();
    }
    return *this;
  }

  torch::nn::Sequential net = net_with_buffers();
  DistributedDataParallel<torch::nn::Sequential> ddp{net};
  torch::optim::AdamW optimizer{ddp->parameters(), torch::optim::AdamWOptions(0.05)};
  optim::StepLR schedule{optimizer, {.step_size = 3, .gamma = 0.5}};
  Trainer trainer;
  data::DataLoader<Points> loader;
  std::map<std::int64_t, double> losses{};  // the report of each step
};

TrainerOptions options_for(OnBadLoss action) {
  return {.epochs = 2, .on_bad_loss = action, .max_bad_steps = 2, .log_interval = 1};
}

// On all ranks, with all that training changes.
void expect_equal(Program& program, Program& expected) {
  EXPECT_TRUE(equal(state_dict(program.net), state_dict(expected.net)));
  EXPECT_TRUE(equal(state_dict(program.optimizer), state_dict(expected.optimizer)));
  EXPECT_EQ(program.trainer.step(), expected.trainer.step());
  EXPECT_EQ(program.schedule.get_last_lr(), expected.schedule.get_last_lr());
  EXPECT_EQ(program.losses, expected.losses);
}

// `factors`: on rank 1.
void expect_undone(const TrainerOptions& options, const std::map<int, double>& factors,
                   const std::set<int>& left_out, const std::string& line) {
  ::testing::internal::CaptureStderr();
  Program program(options);
  program.fit(get_rank() == 1 ? factors : std::map<int, double>());
  const auto log = ::testing::internal::GetCapturedStderr();
  auto plain = options;
  plain.on_bad_loss = "error";
  plain.spike_factor = 0;
  Program expected(plain);
  expect_equal(program, expected.fit_without(left_out));
  if (get_rank() == 0) {
    EXPECT_THAT(log, HasSubstr(line));
  } else {
    EXPECT_EQ(log, "");
  }
}

const Scenario undone("bad losses of rank 1", [] {
  const auto context = init();
  const auto skip = options_for(OnBadLoss::skip);
  expect_undone(skip, {{5, kNaN}}, {5}, "rank 1: loss nan");
  auto accumulating = skip;
  accumulating.accumulation_steps = 2;
  expect_undone(accumulating, {{4, kNaN}}, {4, 5},
                "the 2 batches of the step are skipped (bad step 1 of at most 2");
  auto clipping = skip;
  clipping.max_grad_norm = 0.1;
  // Two in a row, twice: the first batch of all, and one that ends an epoch.
  expect_undone(clipping, {{0, kNaN}, {1, kNaN}, {5, kNaN}, {6, kNaN}}, {0, 1, 5, 6},
                "(bad step 2 of at most 2");
  auto spiking = skip;
  spiking.spike_factor = 20;
  spiking.spike_window = 3;
  expect_undone(spiking, {{8, 1000}}, {8}, "is more than 20 times ");
  auto rewinding = options_for(OnBadLoss::rewind);
  rewinding.rewind_steps = 2;
  expect_undone(rewinding, {{5, kNaN}}, {2, 3, 4, 5}, "the run goes back to the state after step 2,");
  rewinding.rewind_steps = 1;
  expect_undone(rewinding, {{9, kNaN}}, {8, 9}, "the run goes back to the state after step 8,");
  expect_undone(rewinding, {{7, kNaN}}, {7}, "the epoch's beginning limits the rewind");
});

const Scenario too_many("three bad losses in a row", [] {
  const auto context = init();
  Program program(options_for(OnBadLoss::skip));
  const std::map<int, double> factors{{2, kNaN}, {3, kNaN}, {4, kNaN}};
  EXPECT_THAT(
      error_of<NonFiniteError>([&] { program.fit(context.rank() == 1 ? factors : decltype(factors)()); }),
      AllOf(HasSubstr("step 3: "), HasSubstr("rank 1: loss nan"),
            HasSubstr("2 bad steps in a row were undone before, which is the limit (max_bad_steps)")));
  EXPECT_EQ(program.trainer.step(), 2);
});

// With fully_shard().
const Scenario sharded("a bad loss of rank 1 with shards", [] {
  const auto context = init();
  const auto weights = [&](bool is_bad) {
    auto net = make_net();
    const auto module = fully_shard(*net);
    torch::optim::SGD optimizer(module.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    Trainer trainer(net, optimizer, {.on_bad_loss = "skip"});
    auto numbers = is_bad ? std::vector{0, 1, 2, 3} : std::vector{0, 1, 3};
    torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
    trainer.fit(numbers, [&](int number) {
      const auto loss =
          net->forward(torch::full({2, 3}, static_cast<double>(number + context.rank()))).square().sum();
      return number == 2 && context.rank() == 1 ? loss * kNaN : loss;
    });
    EXPECT_EQ(trainer.step(), 3);
    return get_model_state_dict(module, {.full_state_dict = true});
  };
  EXPECT_TRUE(equal(weights(true), weights(false)));
  auto net = make_net();
  const auto module = fully_shard(*net);
  torch::optim::SGD optimizer(module.parameters(), 0.5);
  // A run that begins without the option, or ends without it.
  std::int64_t max_steps = 0;
  for (const bool skips : {false, true, false}) {
    TrainerOptions options{
        .max_steps = ++max_steps, .checkpoints = std::getenv("TRAINER_FOLDER"), .resume = true};
    if (skips) options.on_bad_loss = "skip";
    options.elastic = skips;
    Trainer trainer(net, optimizer, options);
    std::vector<int> batches(3);
    trainer.fit(batches, [&](int) { return net->forward(torch::ones({2, 3})).square().sum(); });
    EXPECT_EQ(trainer.step(), max_steps);
  }
  EXPECT_THAT(error_of<ArgumentError>([&] { Trainer trainer(net, optimizer, {.on_bad_loss = "rewind"}); }),
              HasSubstr("use \"skip\""));
});

TEST(TrainerBadLosses, AreUndoneToTheBitOnAllRanks) { expect_all_passed(run_ranks(undone)); }
TEST(TrainerBadLosses, AreAnErrorWhenTooManyFollowEachOther) { expect_all_passed(run_ranks(too_many)); }
TEST(TrainerBadLosses, AreUndoneWithShards) {
  const TempFolder folder;
  expect_all_passed(run_ranks(sharded, {.env = {{"TRAINER_FOLDER", folder.path().string()}}}));
}

// Of one process: `losses` are trained, and the factors that the optimizer has seen are returned.
struct Factors {
  explicit Factors(TrainerOptions options) : trainer(net, optimizer, std::move(options)) {
    trainer.on_step([this](const at::Tensor& loss) { seen.push_back(loss.item<double>()); });
  }
  void fit(std::vector<double> losses) {
    trainer.fit(losses, [&](double loss) { return net->forward(torch::ones({1, 3})).sum() * 0 + loss; });
  }

  torch::nn::Linear net{3, 3};
  torch::optim::SGD optimizer{net->parameters(), 0.1};
  Trainer trainer;
  std::vector<double> seen{};
};

TEST(TrainerBadLosses, ASpikeIsLargerThanAFactorTimesTheMedianOfTheWindow) {
  Factors program({.on_bad_loss = "skip", .spike_factor = 3, .spike_window = 3});
  program.fit({9, 1, 2, 7, 6, 6.5, -1, -2, -3, 50});
  // The medians before are: none three times, 2, 2, 2, 6, 2, -1, -2.
  EXPECT_THAT(program.seen, ElementsAre(9, 1, 2, 6, -1, -2, -3, 50));
}

TEST(TrainerBadLosses, ASpikeMayBeAnError) {
  Factors program({.spike_factor = 2, .spike_window = 2});
  EXPECT_THAT(
      error_of<Error>([&] {
        program.fit({1, 2, 4});
      }),
      HasSubstr(
          "step 3: the loss 4, the mean of all ranks, is more than 2 times 1.5, the median of the last 2 steps"));
}

TEST(TrainerBadLosses, AGradientMayBeBadAlone) {
  torch::nn::Linear net(3, 3);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto before = net->weight.detach().clone();
  std::vector<int> batches(1);
  for (const auto& norm : {std::optional<double>(), std::optional(1.0)}) {
    Trainer trainer(net, optimizer, {.max_grad_norm = norm, .on_bad_loss = "skip"});
    ::testing::internal::CaptureStderr();
    // The slope of a root is infinite at 0, where the root is finite.
    trainer.fit(batches, [&](int) { return net->weight.sum() + (net->bias * 0).sum().sqrt(); });
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("the first parameter whose gradient is not finite is bias; the batch is skipped"));
    EXPECT_EQ(trainer.step(), 0);
  }
  EXPECT_TRUE(torch::equal(net->weight, before));
}

// The file of step 4 stays the state of the run.
TEST(TrainerBadLosses, ARewindDoesNotGoBeyondACheckpoint) {
  const TempFolder folder;
  Factors program({.on_bad_loss = "rewind",
                   .rewind_steps = 2,
                   .checkpoints = folder.path(),
                   .checkpoint_interval = 4,
                   .log_interval = 1});
  program.fit({1, 2, 3, 4, 5, kNaN, 6, 7});
  EXPECT_EQ(program.trainer.step(), 6);
  std::vector<std::int64_t> steps;
  for (const auto& checkpoint : CheckpointManager(folder.path()).checkpoints())
    steps.push_back(checkpoint.step);
  EXPECT_THAT(steps, ElementsAre(4, 6));
}

// With the median, the number of bad steps in a row and the copies for a rewind, as after the loss of a rank.
TEST(TrainerBadLosses, AReplacementGoesOnAsTheRankThatItReplaces) {
  using Access = checkpointing::TrainingStateAccess;
  const TrainerOptions options{
      .on_bad_loss = "rewind", .spike_factor = 3, .spike_window = 2, .max_bad_steps = 1, .rewind_steps = 1};
  const auto train = [](Factors& program, double loss) {
    program.trainer.train_batch([&] {
      return program.net->forward(torch::ones({1, 3})).square().sum() * 1e-3 + loss;
    });
  };
  Factors lost(options);
  const auto signals = lost.trainer.begin_fit();
  ASSERT_TRUE(lost.trainer.begin_epoch());
  for (const double loss : {1.0, 1.1, 1.2, 1.3, 90.0}) train(lost, loss);
  EXPECT_EQ(lost.trainer.step(), 3);
  const auto commit = load_bytes(save_bytes(Access::own_state_dict(lost.trainer.state())));

  Factors replacement(options);
  ASSERT_TRUE(replacement.trainer.begin_epoch());
  Access::load_own_state_dict(replacement.trainer.state(), commit.as_dict());
  EXPECT_THAT(error_of<Error>([&] { train(replacement, 90); }), HasSubstr("max_bad_steps"));
  Access::load_own_state_dict(replacement.trainer.state(), commit.as_dict());
  for (auto* program : {&lost, &replacement})
    for (const double loss : {1.4, 90.0, 1.5}) train(*program, loss);
  EXPECT_EQ(replacement.trainer.step(), lost.trainer.step());
  EXPECT_TRUE(equal(state_dict(replacement.net), state_dict(lost.net)));
}

TEST(TrainerBadLosses, OptionsAreChecked) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto message = [&](const TrainerOptions& options) {
    return error_of<ArgumentError>([&] { Trainer trainer(net, optimizer, options); });
  };
  EXPECT_THAT(message({.spike_factor = 1}), HasSubstr("spike_factor = 1; give more than 1"));
  EXPECT_THAT(message({.spike_window = 0}), HasSubstr("spike_window = 0"));
  EXPECT_THAT(message({.max_bad_steps = 0}), HasSubstr("max_bad_steps = 0"));
  EXPECT_THAT(message({.rewind_steps = 0}), HasSubstr("rewind_steps = 0"));
  EXPECT_THAT(message({.autocast = torch::kHalf, .on_bad_loss = "skip"}),
              HasSubstr("on_bad_loss = \"skip\" does not work with autocast in float16"));
  EXPECT_THAT(message({.autocast = torch::kHalf, .spike_factor = 2}),
              HasSubstr("spike_factor does not work"));
}

}  // namespace
}  // namespace lockstep::testing
