// SPDX-License-Identifier: BSD-3-Clause
// How one process stops and resumes: epochs that were cut short, accumulation, signals, reports, checkpoints.
#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "multiprocess/trainer_points.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The logs of a run that ended between the last step of an epoch and its validation have each step once.
TEST(TrainerStops, LogsEachStepOfAnEpochThatWasCutShort) {
  const TempFolder folder;
  std::vector<std::string> logged;
  const auto train = [&](bool fails) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    std::vector<Points::Batch> batches(3, Points().get_batch(torch::arange(8)));
    Trainer trainer(
        net, optimizer,
        {.checkpoints = folder.path() / "run", .checkpoint_interval = 1, .resume = true, .log_interval = 1});
    trainer.on_log(csv_logger(folder.path() / "log.csv")).on_validate([&] {
      if (fails) throw Error("the validation fails");
      return Scalars{{"accuracy", 1.0}};
    });
    trainer.fit(batches,
                [&](auto& batch) { return cross_entropy(net->forward(batch.inputs), batch.targets); });
  };
  EXPECT_THAT(error_of([&] { train(true); }), HasSubstr("the validation fails"));
  train(false);
  std::ifstream file(folder.path() / "log.csv");
  for (std::string line; std::getline(file, line);) logged.push_back(line.substr(0, line.find(',')));
  EXPECT_THAT(logged, ElementsAre("step", "1", "2", "3", "3"));
}

// A vector of batches has no position, so the trainer counts.
TEST(TrainerStops, ContinuesAListOfBatchesWhereItStopped) {
  const TempFolder folder;
  std::vector<std::int64_t> batches{0, 1, 2, 3, 4}, trained;
  const auto train = [&](std::int64_t max_steps) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Trainer trainer(net, optimizer,
                    {.epochs = 2,
                     .max_steps = max_steps,
                     .checkpoints = folder.path(),
                     .resume = true,
                     .progress = true});
    trainer.fit(batches, [&](std::int64_t batch) {
      trained.push_back(batch);
      return net->forward(torch::ones({1, 3})).sum();
    });
    return trainer.batch();
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(train(3), 3);
  EXPECT_EQ(train(7), 2);
  EXPECT_EQ(train(10), 0);  // the epoch has ended
  EXPECT_EQ(train(20), 0);
  EXPECT_THAT(trained, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("epoch 1/2:  60% 3/5"), HasSubstr("epoch 1/2: 100% 5/5"),
                    HasSubstr("epoch 2/2:  40% 2/5"), HasSubstr("epoch 2/2: 100% 5/5")));
}

TEST(TrainerStops, StaysStoppedAfterAnEarlyStop) {
  const TempFolder folder;
  std::vector<int> batches(2);
  const auto train = [&](TrainerOptions options) {
    options.checkpoints = folder.path();
    options.higher_is_better = false;
    options.metric = "loss";
    options.resume = true;
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    EarlyStopping stopping({.patience = 2});
    Trainer trainer(net, optimizer, options);
    trainer.stop_early(stopping).on_validate([] { return Scalars{{"loss", 1.0}}; });
    trainer.fit(batches, [&](int) { return net->forward(torch::ones({1, 3})).sum(); });
    EXPECT_TRUE(trainer.stopped());
    return trainer.epoch();
  };
  EXPECT_EQ(train({.epochs = 9, .max_steps = 3}), 1);
  EXPECT_EQ(train({.epochs = 9, .epochs_per_checkpoint = 2}), 3);
  EXPECT_EQ(CheckpointManager(folder.path()).checkpoints().back().step, 6);
  EXPECT_EQ(train({.epochs = 9}), 3);
}

// Steps after a resumed run of epochs of so many batches.
std::int64_t steps_of_run(const TempFolder& folder, std::size_t count, std::int64_t epochs,
                          std::int64_t accumulation_steps) {
  std::vector<int> batches(count);
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(net, optimizer,
                  {.epochs = epochs,
                   .accumulation_steps = accumulation_steps,
                   .checkpoints = folder.path(),
                   .resume = true});
  trainer.fit(batches, [&](int) { return net->forward(torch::ones({1, 3})).sum(); });
  return trainer.step();
}

TEST(TrainerStops, RefusesTheGradientsOfAnotherAccumulation) {
  const TempFolder folder;
  const auto train = [&](int epochs, int steps) { return steps_of_run(folder, 3, epochs, steps); };
  EXPECT_EQ(train(1, 2), 1);
  for (const int other : {1, 3})
    EXPECT_THAT(error_of<ArgumentError>([&] { train(2, other); }),
                HasSubstr("the gradients of 1 of 2 batches of a step, but accumulation_steps is"));
  EXPECT_EQ(train(2, 2), 3);
  EXPECT_EQ(train(3, 3), 4);  // after a step any number will do
}

TEST(TrainerStops, AccumulatesAfterARunWithoutAccumulation) {
  const TempFolder folder;
  const auto train = [&](int epochs, int steps) { return steps_of_run(folder, 2, epochs, steps); };
  EXPECT_EQ(train(1, 1), 2);
  EXPECT_EQ(train(2, 2), 3);
  EXPECT_EQ(train(3, 1), 5);
}

TEST(TrainerStops, ValidatesWhenTheLastStepEndsAnEpoch) {
  const TempFolder folder;
  std::vector<int> batches(2), validated;
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(net, optimizer, {.max_steps = 4, .checkpoints = folder.path(), .metric = "accuracy"});
  trainer.on_validate([&] {
    validated.push_back(static_cast<int>(trainer.step()));
    return Scalars{{"accuracy", 1.0}};
  });
  trainer.fit(batches, [&](int) { return net->forward(torch::ones({1, 3})).sum(); });
  EXPECT_THAT(validated, ElementsAre(2, 4));
  EXPECT_EQ(trainer.epoch(), 2);
  EXPECT_EQ(CheckpointManager(folder.path()).checkpoints().back().metric, 1.0);
}

volatile std::sig_atomic_t late_signals = 0;

TEST(TrainerStops, DoesNotSwallowASignalAfterStop) {
  late_signals = 0;
  auto* const before = std::signal(SIGTERM, [](int) { late_signals = late_signals + 1; });
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(net, optimizer, {});
  std::vector<int> batches(3);
  trainer.on_step([](const at::Tensor&) { std::raise(SIGTERM); });  // the ranks have agreed to stop
  trainer.fit(batches, [&](int) {
    trainer.stop();
    return net->forward(torch::ones({1, 3})).sum();
  });
  std::signal(SIGTERM, before);
  EXPECT_FALSE(trainer.interrupted());
  EXPECT_EQ(trainer.step(), 1);
  EXPECT_EQ(late_signals, 1);
}

TEST(TrainerStops, ReportsOnceWhenItStopsAndNotAfterAResume) {
  const TempFolder folder;
  std::vector<std::int64_t> reported;
  const auto train = [&](bool stops_early) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    std::vector<int> batches(2);
    EarlyStopping stopping({.patience = 1});
    Trainer trainer(net, optimizer,
                    {.epochs = 3,
                     .checkpoints = folder.path() / (stops_early ? "early" : "stopped"),
                     .higher_is_better = false,
                     .metric = "loss",
                     .resume = true});
    if (stops_early) trainer.stop_early(stopping);
    trainer.on_validate([] {
             return Scalars{{"loss", 1.0}};
           })
        .on_log([&](std::int64_t step, const Scalars& scalars) {
          if (!scalars.contains("lr")) return;
          EXPECT_EQ(scalars.at("lr"), 0.1);
          reported.push_back(step);
        });
    trainer.fit(batches, [&](int) {
      if (trainer.step() == 5 && !stops_early) trainer.stop();
      return net->forward(torch::ones({1, 3})).sum();
    });
  };
  train(true);
  EXPECT_THAT(reported, ElementsAre(4));
  train(false);  // in the last batch
  train(false);
  EXPECT_THAT(reported, ElementsAre(4, 6));
}

TEST(TrainerStops, EndsWithItsCheckpointsOnDisk) {
  const TempFolder folder;
  const auto train = [&](bool fails) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    std::vector<int> batches(2);
    const auto run = folder.path() / (fails ? "lost" : "kept");
    Trainer trainer(net, optimizer, {.checkpoints = run, .async_save = true, .checkpoint_interval = 1});
    trainer.on_epoch_end([&](const Scalars&) {
      // At once: a thread may be writing into the folder.
      if (fails) std::filesystem::rename(run, folder.path() / "elsewhere");
    });
    trainer.fit(batches, [&](int) { return net->forward(torch::ones({1, 3})).sum(); });
    return CheckpointManager(run).load_latest()->info.step;
  };
  EXPECT_EQ(train(false), 2);
  EXPECT_THAT(error_of<CheckpointError>([&] { train(true); }), HasSubstr("lost"));
}

// It arrives in the last save, after the last agreement; the second one before.
TEST(TrainerStops, LeavesLateAndSecondSignalsToTheirFormerHandler) {
  const TempFolder folder;
  const auto former = std::signal(SIGUSR2, [](int) { ++handled; });
  for (const bool late : {true, false}) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Trainer trainer(net, optimizer,
                    {.checkpoints = folder.path() / (late ? "a" : "b"), .stop_signals = {SIGUSR2}});
    const auto raise_now = [&] {
      std::raise(SIGUSR2);
      return Value(0);
    };
    if (late) trainer.state().add_functions("signal", raise_now, [](const Value&) {});
    std::vector<int> batches(2);
    handled = 0;
    trainer.fit(batches, [&](int) {
      if (!late) std::raise(SIGUSR2);
      return net->forward(torch::ones({1, 3})).sum();
    });
    EXPECT_EQ(handled, late ? 1 : 0);
    EXPECT_EQ(trainer.interrupted(), !late);
    EXPECT_EQ(trainer.step(), late ? 2 : 1);
  }
  std::signal(SIGUSR2, former);
}

}  // namespace
}  // namespace lockstep::testing
