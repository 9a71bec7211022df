// SPDX-License-Identifier: BSD-3-Clause
// Trainer beside the loop that it stands for, interrupted and resumed, with real processes.
#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using torch::nn::functional::cross_entropy;

struct Points {
  struct Batch {
    at::Tensor inputs, targets;
  };
  std::size_t size() const { return 52; }  // 7 batches of 4 per rank: an odd number for 2 per step
  Batch get_batch(const at::Tensor& indices) const {
    const auto x = indices.to(torch::kFloat).unsqueeze(1);
    return {torch::cat({(x * 0.3).sin(), (x * 0.7).cos(), x / 52}, 1), indices % 3};
  }
};

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                               torch::nn::Linear(8, 3));
}

auto make_points_loader() {
  return data::make_loader(Points(), {.batch_size = 4, .shuffle = true, .seed = 5});
}

// What a training program has.
struct Program {
  explicit Program(TrainerOptions options)
      : trainer(ddp, optimizer, std::move(options)), loader(make_points_loader()) {
    trainer.epoch_scheduler(schedule).on_log([this](std::int64_t step, const Scalars& scalars) {
      if (scalars.contains("loss")) losses[step] = scalars.at("loss");
    });
    torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  }
  void fit() {
    trainer.fit(loader,
                [&](auto& batch) { return cross_entropy(ddp->forward(batch.inputs), batch.targets); });
  }

  torch::nn::Sequential net = make_net();
  DistributedDataParallel<torch::nn::Sequential> ddp{net};
  torch::optim::SGD optimizer{ddp->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9)};
  optim::StepLR schedule{optimizer, 2};
  Trainer trainer;
  decltype(make_points_loader()) loader;
  std::map<std::int64_t, double> losses{};  // the last report of each step
};

TrainerOptions common_options() {
  return {.epochs = 3, .accumulation_steps = 2, .max_grad_norm = 0.4, .log_interval = 1};
}

Dict trained_by_hand() {
  auto net = make_net();
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  optim::StepLR schedule(optimizer, 2);
  auto loader = make_points_loader();
  torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  std::int64_t batches = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    loader.set_epoch(epoch);
    net->train();
    for (auto& batch : loader) {
      std::optional<NoSync> no_sync;
      if (batches % 2 == 0) no_sync.emplace(ddp->no_sync());
      (cross_entropy(ddp->forward(batch.inputs), batch.targets) / 2).backward();
      if (++batches % 2 != 0) continue;
      clip_grad_norm_(ddp, 0.4);
      optimizer.step();
      optimizer.zero_grad();
    }
    schedule.step();
  }
  return state_dict(net);
}

Dict trained_at_once() {
  Program program(common_options());
  program.fit();
  return state_dict(program.net);
}

std::string folder_of_run() { return std::getenv("TRAINER_FOLDER"); }

TrainerOptions saving_options() {
  auto options = common_options();
  options.checkpoints = folder_of_run();
  options.checkpoint_interval = 1;
  options.resume = true;
  return options;
}

const Scenario by_hand("a trainer and the loop by hand", [] {
  const auto context = init();
  EXPECT_TRUE(equal(trained_at_once(), trained_by_hand()));
});

// Stops after every step and every epoch, two of which end between two steps.
const Scenario in_pieces("a trainer that stops as often as it can", [] {
  const auto context = init();
  Program at_once(common_options());
  at_once.fit();
  std::map<std::int64_t, double> losses;
  for (int runs = 0; runs < 20; ++runs) {
    Program program(saving_options());
    if (context.rank() == runs % 2) program.trainer.stop();
    program.fit();
    losses.merge(program.losses);
    EXPECT_TRUE(program.trainer.stopped());
    if (program.trainer.epoch() != 3) continue;
    EXPECT_GT(runs, 10);
    EXPECT_EQ(program.trainer.step(), 10);
    EXPECT_TRUE(equal(state_dict(program.net), state_dict(at_once.net)));
    ASSERT_EQ(losses.size(), 10U);
    // A checkpoint between two steps has the mean of their losses over the ranks.
    for (const auto& [step, loss] : at_once.losses) EXPECT_NEAR(losses.at(step), loss, 1e-6) << step;
    return;
  }
  FAIL() << "the run never ended";
});

const Scenario killed("a trainer whose rank is killed", [] {
  const auto context = init();
  Program program(saving_options());
  program.trainer.on_step([&](const at::Tensor&) {
    if (context.rank() == 1 && program.trainer.step() == 6) std::raise(SIGKILL);
  });
  program.fit();
});

const Scenario after_kill("a trainer that continues after it", [] {
  const auto context = init();
  Program program(saving_options());
  program.fit();
  EXPECT_TRUE(equal(state_dict(program.net), trained_at_once()));
});

const Scenario signalled("a trainer that gets SIGTERM on one rank", [] {
  const auto context = init();
  auto options = saving_options();
  options.stop_signals = {SIGTERM, SIGUSR1};
  Program program(options);
  program.trainer.on_step([&](const at::Tensor&) {
    if (context.rank() == 1 && program.trainer.step() == 2) std::raise(SIGUSR1);
  });
  program.fit();
  EXPECT_TRUE(program.trainer.stopped());
  EXPECT_EQ(program.trainer.step(), 3);  // agreed on before the third step's update
  EXPECT_EQ(CheckpointManager(folder_of_run()).checkpoints().back().step, 3);
  struct sigaction now {};
  ::sigaction(SIGUSR1, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
});

const Scenario not_finite("a loss that is NaN on one rank", [] {
  const auto context = init();
  Program program(common_options());
  const auto before = state_dict(program.net);
  const auto message = error_of<NonFiniteError>([&] {
    program.trainer.fit(program.loader, [&](auto& batch) {
      const auto loss = cross_entropy(program.ddp->forward(batch.inputs), batch.targets);
      return context.rank() == 1 ? loss * std::numeric_limits<float>::quiet_NaN() : loss;
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("step 1:"), HasSubstr("rank 0: loss 1."),
                             HasSubstr("rank 1: loss nan"), HasSubstr("is module.0.weight")));
  EXPECT_EQ(program.trainer.step(), 0);
  const auto loss = torch::tensor(context.rank() == 0 ? std::numeric_limits<float>::infinity() : 1.0F);
  EXPECT_THAT(error_of<NonFiniteError>([&] { finite_or_stop(loss, program.net, 7); }),
              AllOf(HasSubstr("step 7:"), HasSubstr("rank 0: loss inf"), HasSubstr("rank 1: loss 1")));
  finite_or_stop(torch::tensor(1.0F), program.net, 8);
});

const Scenario reports("what a trainer reports and keeps", [] {
  const auto context = init();
  auto options = saving_options();
  options.log_interval = 4;
  options.metric = "distance";
  options.epochs = 10;
  options.resume = false;
  options.higher_is_better = false;
  Program program(options);
  std::vector<std::string> names;
  std::vector<double> losses, means;
  program.trainer.on_step([&](const at::Tensor& loss) { losses.push_back(loss.item<double>()); });
  program.trainer.on_log([&](std::int64_t step, const Scalars& scalars) {
    EXPECT_EQ(step, program.trainer.step());
    if (scalars.contains("loss")) means.push_back(scalars.at("loss"));
    for (const auto& [name, value] : scalars) names.push_back(name);
  });
  // Best after the second epoch.
  EarlyStopping stopping({.patience = 2});
  program.trainer.state().add("stopping", stopping);
  program.trainer.on_validate([&] {
    EXPECT_FALSE(program.net->is_training());
    EXPECT_FALSE(torch::GradMode::is_enabled());
    return Scalars{{"distance", std::abs(static_cast<double>(program.trainer.epoch() - 1))}};
  });
  program.trainer.on_epoch_end([&](const Scalars& validation) {
    if (stopping.step(validation.at("distance"))) program.trainer.stop();
  });
  program.fit();
  EXPECT_TRUE(program.trainer.stopped());
  EXPECT_EQ(program.trainer.epoch(), 4);
  EXPECT_EQ(program.trainer.step(), 14);
  EXPECT_THAT(std::vector(names.begin(), names.begin() + 5),
              ElementsAre("distance", "epoch", "grad_norm", "loss", "lr"));
  const auto own_mean = (losses[0] + losses[1] + losses[2] + losses[3]) / 4;
  EXPECT_NEAR(means.front(), reduce_value(own_mean), 1e-6);
  EXPECT_EQ(CheckpointManager(folder_of_run(), {.higher_is_better = false}).load_best()->info.step, 7);
});

class TrainerRuns : public ::testing::Test {
 protected:
  std::vector<RankResult> run(const Scenario& scenario) const {
    return run_ranks(scenario, {.world_size = 2, .env = {{"TRAINER_FOLDER", folder_.path().string()}}});
  }
  TempFolder folder_;
};

TEST_F(TrainerRuns, EqualTheLoopByHandToTheBit) { expect_all_passed(run(by_hand)); }
TEST_F(TrainerRuns, EqualOneRunWhenTheyStopAfterEveryStep) { expect_all_passed(run(in_pieces)); }
TEST_F(TrainerRuns, EqualOneRunAfterAKill) {
  EXPECT_EQ(run(killed)[1].signal, SIGKILL);
  expect_all_passed(run(after_kill));
}
TEST_F(TrainerRuns, StopOnAllRanksWhenOneGetsASignal) { expect_all_passed(run(signalled)); }
TEST_F(TrainerRuns, StopOnAllRanksWhenOneLossIsNotFinite) { expect_all_passed(run(not_finite)); }
TEST_F(TrainerRuns, ReportAndKeepTheBest) { expect_all_passed(run(reports)); }

TEST(TrainerArguments, AreRefused) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto message = [&](const TrainerOptions& options) {
    return error_of<ArgumentError>([&] { Trainer trainer(net, optimizer, options); });
  };
  EXPECT_THAT(message({.epochs = -1}), HasSubstr("epochs = -1"));
  EXPECT_THAT(message({.max_steps = -1}), HasSubstr("max_steps = -1"));
  EXPECT_THAT(message({.accumulation_steps = 0}), HasSubstr("accumulation_steps = 0"));
  EXPECT_THAT(message({.max_grad_norm = 0.0}), HasSubstr("max_grad_norm = 0"));
  EXPECT_THAT(message({.resume = true}), HasSubstr("folder"));
  EXPECT_THAT(message({.log_interval = 0}), HasSubstr("log_interval = 0"));
  EXPECT_THAT(message({.agree_interval = 0}), HasSubstr("agree_interval = 0"));
  EXPECT_THAT(error_of<ArgumentError>([] { EarlyStopping({.patience = 0}); }), HasSubstr("patience = 0"));
  EXPECT_THAT(error_of<ArgumentError>([] { EarlyStopping({.min_delta = -1}); }), HasSubstr("min_delta = -1"));
  Trainer trainer(net, optimizer, {.stop_signals = {SIGKILL}});
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)trainer.begin_fit(); }), HasSubstr("signal 9"));
}

TEST(TrainerOfOneProcess, LowersTheRateWhenTheMetricStopsImproving) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  optim::ReduceLROnPlateau schedule(optimizer, {.patience = 0});
  std::vector<Points::Batch> batches{Points().get_batch(torch::arange(8))};
  const auto loss_of = [&](auto& batch) { return cross_entropy(net->forward(batch.inputs), batch.targets); };
  Trainer trainer(net, optimizer, {.epochs = 2, .metric = "loss"});
  trainer.epoch_scheduler(schedule).on_validate([] { return Scalars{{"loss", 1.0}}; });
  trainer.fit(batches, loss_of);
  EXPECT_DOUBLE_EQ(schedule.get_last_lr()[0], 0.05);
  Trainer without_metric(net, optimizer, {});
  EXPECT_THAT(error_of<ArgumentError>([&] { without_metric.epoch_scheduler(schedule); }),
              HasSubstr("metric"));
  EarlyStopping stopping;
  EXPECT_THAT(error_of<ArgumentError>([&] { without_metric.stop_early(stopping); }),
              HasSubstr("EarlyStopping needs options.metric"));
}

TEST(TrainerOfOneProcess, ClosesItsProgressBarWhenItStops) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<Points::Batch> batches(3, Points().get_batch(torch::arange(8)));
  ::testing::internal::CaptureStderr();
  Trainer trainer(net, optimizer, {.max_steps = 1, .progress = true});
  trainer.fit(batches, [&](auto& batch) { return cross_entropy(net->forward(batch.inputs), batch.targets); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("epoch 1/1:  33% 1/3"));
}

// A vector of batches has no position, so the trainer counts.
TEST(TrainerOfOneProcess, ContinuesAListOfBatchesWhereItStopped) {
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
  EXPECT_EQ(train(10), 5);
  EXPECT_EQ(train(20), 0);
  EXPECT_THAT(trained, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("epoch 1/2:  60% 3/5"), HasSubstr("epoch 1/2: 100% 5/5"),
                    HasSubstr("epoch 2/2:  40% 2/5"), HasSubstr("epoch 2/2: 100% 5/5")));
}

TEST(TrainerOfOneProcess, StaysStoppedAfterAnEarlyStop) {
  const TempFolder folder;
  std::vector<int> batches(2);
  const auto train = [&](TrainerOptions options) {
    options.checkpoints = folder.path();
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

TEST(TrainerOfOneProcess, StepsASchedulerAfterEachStepAndKeepsAsManyCheckpointsAsAsked) {
  const TempFolder folder;
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  optim::ExponentialLR schedule(optimizer, 0.5);
  std::vector<int> batches(3);
  Trainer trainer(
      net, optimizer,
      {.epochs = 4, .checkpoints = folder.path(), .keep_last = 1, .keep_best = 2, .metric = "score"});
  std::vector<double> rates;
  trainer.step_scheduler(schedule)
      .on_step([&](const at::Tensor&) { rates.push_back(schedule.get_last_lr()[0]); })
      .on_validate([&] {
        return Scalars{{"score", -static_cast<double>(trainer.epoch())}};
      });
  trainer.fit(batches, [&](int) { return net->forward(torch::ones({1, 3})).sum(); });
  EXPECT_THAT(rates, SizeIs(12));
  EXPECT_DOUBLE_EQ(rates[2], 0.0125);
  std::vector<std::int64_t> steps;
  for (const auto& checkpoint : CheckpointManager(folder.path()).checkpoints())
    steps.push_back(checkpoint.step);
  EXPECT_THAT(steps, ElementsAre(3, 6, 12));
}

TEST(TrainerOfOneProcess, ChecksTheNormOfTheGradients) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<int> batches(1);
  Trainer trainer(net, optimizer, {.max_grad_norm = 1.0});
  // The slope of a root is infinite at 0, where the root is finite.
  EXPECT_THAT(
      error_of<NonFiniteError>([&] {
        trainer.fit(batches, [&](int) { return (net->forward(torch::ones({1, 3})) * 0).sum().sqrt(); });
      }),
      HasSubstr("step 1:"));
}

TEST(TrainerOfOneProcess, ClipsTheUnscaledGradientsOfFloat16) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<int> batches(1);
  Trainer trainer(net, optimizer, {.max_grad_norm = 100.0, .autocast = torch::kHalf, .log_interval = 1});
  double norm = 0;
  trainer.on_log([&](std::int64_t, const Scalars& scalars) { norm = scalars.at("grad_norm"); });
  trainer.fit(batches, [&](int) { return net->parameters().back().sum(); });
  EXPECT_NEAR(norm, std::sqrt(3.0), 1e-3);
  EXPECT_TRUE(trainer.state().state_dict().contains("scaler"));
}

TEST(TrainerOfOneProcess, ChecksTheLastLossOfAnEpoch) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<double> factors{1, 1, std::nan("")};
  Trainer trainer(net, optimizer, {.agree_interval = 100});
  EXPECT_THAT(
      error_of<NonFiniteError>([&] {
        trainer.fit(factors, [&](double factor) { return net->forward(torch::ones({1, 3})).sum() * factor; });
      }),
      HasSubstr("step 3:"));
}

// In one process without a run, in float16.
TEST(TrainerOfOneProcess, ScalesTheLossAndSkipsBadSteps) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(net, optimizer, {.autocast = torch::kHalf});
  std::vector<Points::Batch> batches{Points().get_batch(torch::arange(8)),
                                     Points().get_batch(torch::arange(9, 12))};
  batches[1].inputs[0][0] = std::numeric_limits<float>::infinity();
  std::vector<at::Tensor> weights;
  trainer.on_step([&](const at::Tensor&) { weights.push_back(net->parameters()[0].detach().clone()); });
  trainer.fit(batches, [&](auto& batch) {
    EXPECT_EQ(torch::nn::functional::linear(batch.inputs, net->parameters()[0]).scalar_type(), torch::kHalf);
    return cross_entropy(net->forward(batch.inputs), batch.targets);
  });
  ASSERT_EQ(weights.size(), 2U);
  EXPECT_FALSE(torch::equal(weights[0], make_net()->parameters()[0]));
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
  EXPECT_EQ(trainer.epoch(), 1);
}

TEST(EarlyStops, CountValidationsWithoutImprovement) {
  EarlyStopping stopping({.patience = 2, .min_delta = 0.1, .higher_is_better = true});
  EXPECT_FALSE(stopping.step(std::nan("")));
  EXPECT_FALSE(stopping.step(0.5));
  EXPECT_FALSE(stopping.step(0.55));
  EarlyStopping resumed({.patience = 2, .min_delta = 0.1, .higher_is_better = true});
  resumed.load_state_dict(stopping.state_dict());
  EXPECT_EQ(resumed.best(), 0.5);
  EXPECT_TRUE(resumed.step(std::nan("")));
  EXPECT_FALSE(resumed.step(0.61));
}

}  // namespace
}  // namespace lockstep::testing
