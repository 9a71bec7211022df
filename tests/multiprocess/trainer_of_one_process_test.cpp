// SPDX-License-Identifier: BSD-3-Clause
// Trainer's arguments, and its rules that one process shows.
#include <limits>

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
using ::testing::SizeIs;
using torch::nn::functional::cross_entropy;

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
  Trainer trainer(net, optimizer, {.epochs = 2, .higher_is_better = false, .metric = "loss"});
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
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("epoch 1:  33% 1/3"));
}

// GPT-2's embedding and head are one tensor.
TEST(TrainerOfOneProcess, ClipsATensorWithTwoNamesOnce) {
  const torch::nn::Linear layer(3, 3);
  torch::nn::Sequential net(layer, layer);
  const auto loss_of = [&] { return net->forward(torch::ones({1, 3})).sum(); };
  loss_of().backward();
  const auto gradients = at::cat({layer->weight.grad().flatten(), layer->bias.grad()});
  const auto norm = gradients.norm().item<double>();
  const auto expected = layer->bias.detach() - layer->bias.grad() / norm;
  net->zero_grad();

  torch::optim::SGD optimizer(layer->parameters(), 1.0);
  Trainer trainer(net, optimizer, {.max_steps = 1, .max_grad_norm = 1.0});
  double reported = 0;
  trainer.on_log([&](std::int64_t, const Scalars& scalars) { reported = scalars.at("grad_norm"); });
  std::vector<int> batches(1);
  trainer.fit(batches, [&](int) { return loss_of(); });
  EXPECT_NEAR(reported, norm, 1e-5 * norm);
  EXPECT_TRUE(torch::allclose(layer->bias, expected, 1e-4));
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

TEST(TrainerOfOneProcess, NamesTheParameterWhoseGradientIsBadBeforeClipping) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<int> batches(1);
  Trainer trainer(net, optimizer, {.max_grad_norm = 1.0});
  // 0 times an infinite slope.
  EXPECT_THAT(error_of<NonFiniteError>([&] {
                trainer.fit(batches, [&](int) {
                  const auto parameters = net->parameters();
                  return parameters[0].sum() + (parameters[3] * 0).sum().sqrt();
                });
              }),
              HasSubstr("is not finite is 3.bias"));
}

TEST(TrainerOfOneProcess, SavesNoParametersThatAreNotFinite) {
  const TempFolder folder;
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<double> factors{1, std::nan(""), 1};
  Trainer trainer(net, optimizer,
                  {.checkpoints = folder.path(), .checkpoint_interval = 1, .agree_interval = 100});
  EXPECT_THAT(
      error_of<NonFiniteError>([&] {
        trainer.fit(factors, [&](double factor) { return net->forward(torch::ones({1, 3})).sum() * factor; });
      }),
      AllOf(HasSubstr("step 2: parameters are not finite"), HasSubstr("rank 0: 0.weight")));
  EXPECT_EQ(CheckpointManager(folder.path()).checkpoints().back().step, 1);
  // Without resume this folder is refused at once.
  auto other = make_net();
  torch::optim::SGD other_optimizer(other->parameters(), 0.1);
  Trainer from_start(other, other_optimizer, {.checkpoints = folder.path()});
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)from_start.begin_fit(); }),
              HasSubstr("has checkpoints up to step 1; set resume"));
}

TEST(TrainerOfOneProcess, RefusesAMetricThatIsBetterTheOtherWay) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(net, optimizer, {.metric = "accuracy"});
  EarlyStopping stopping;
  EXPECT_THAT(error_of<ArgumentError>([&] { trainer.stop_early(stopping); }),
              HasSubstr("for EarlyStopping a lower accuracy is better"));
  optim::ReduceLROnPlateau plateau(optimizer);
  EXPECT_THAT(error_of<ArgumentError>([&] { trainer.epoch_scheduler(plateau); }),
              HasSubstr("for ReduceLROnPlateau a lower accuracy"));
}

// The program's own loop continues in the middle of an epoch, too.
TEST(TrainerOfOneProcess, TrainsInALoopOfOnesOwnWithAStepOfOnesOwn) {
  const TempFolder folder;
  std::vector<std::int64_t> trained;
  int steps = 0;
  const auto train = [&](std::int64_t max_steps) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Trainer trainer(net, optimizer, {.max_steps = max_steps, .checkpoints = folder.path(), .resume = true});
    trainer.replace_step([&] { ++steps; });
    const auto signals = trainer.begin_fit();
    while (trainer.begin_epoch(3)) {
      for (auto batch = trainer.batch(); batch < 3 && !trainer.stopped(); ++batch) {
        trained.push_back(batch);
        trainer.train_batch([&] { return net->forward(torch::ones({1, 3})).sum(); });
      }
      if (!trainer.stopped()) trainer.end_epoch();
    }
    EXPECT_TRUE(torch::equal(net->parameters()[0], make_net()->parameters()[0]));
  };
  train(2);
  train(7);
  EXPECT_THAT(trained, ElementsAre(0, 1, 2, 0, 1, 2, 0));
  EXPECT_EQ(steps, 7);
}

TEST(TrainerOfOneProcess, ReportsTheLastStepsAndTheRateOfEach) {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  optim::ExponentialLR schedule(optimizer, 0.5);
  std::vector<int> batches(3);
  Trainer trainer(net, optimizer, {.log_interval = 2});
  std::vector<std::pair<std::int64_t, double>> rates;
  trainer.step_scheduler(schedule).on_log(
      [&](std::int64_t step, const Scalars& scalars) { rates.emplace_back(step, scalars.at("lr")); });
  trainer.fit(batches, [&](int) { return net->forward(torch::ones({1, 3})).sum(); });
  EXPECT_THAT(rates, ElementsAre(std::pair(2, 0.25), std::pair(3, 0.125)));
}

int handled = 0;

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
