// SPDX-License-Identifier: BSD-3-Clause
// Optimizers and schedulers as a user of PyTorch writes them first.
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "support/error_of.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

std::vector<at::Tensor> weights() { return {torch::ones({1}, torch::requires_grad())}; }

// Both make the same rates.
template <typename Left, typename Right>
void expect_alike(const Left& left, const Right& right) {
  torch::optim::SGD one(weights(), 1.0);
  torch::optim::SGD other(weights(), 1.0);
  auto first = left(one);
  auto second = right(other);
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(first.get_last_lr(), second.get_last_lr());
    first.step();
    second.step();
  }
  EXPECT_TRUE(equal(first.state_dict(), second.state_dict()));
}

TEST(Guesses, SchedulersTakeArgumentsByPositionAndByName) {
  using namespace optim::lr_scheduler;
  expect_alike([](auto& o) { return StepLR(o, 2, 0.5); },
               [](auto& o) { return StepLR(o, {.step_size = 2, .gamma = 0.5}); });
  expect_alike(
      [](auto& o) {
        return MultiStepLR(o, {1, 3});
      },
      [](auto& o) {
        return MultiStepLR(o, {.milestones = {1, 3}});
      });
  expect_alike([](auto& o) { return ConstantLR(o, 0.5); },
               [](auto& o) { return ConstantLR(o, {.factor = 0.5}); });
  expect_alike([](auto& o) { return LinearLR(o, 0.1, 1, 3); },
               [](auto& o) { return LinearLR(o, {.start_factor = 0.1, .total_iters = 3}); });
  expect_alike([](auto& o) { return ExponentialLR(o, 0.9); },
               [](auto& o) { return ExponentialLR(o, {.gamma = 0.9}); });
  expect_alike([](auto& o) { return PolynomialLR(o, 4, 2); },
               [](auto& o) { return PolynomialLR(o, {.total_iters = 4, .power = 2}); });
  expect_alike([](auto& o) { return CosineAnnealingLR(o, 4); },
               [](auto& o) { return CosineAnnealingLR(o, {.T_max = 4}); });
  expect_alike([](auto& o) { return CosineAnnealingWarmRestarts(o, 2, 2); },
               [](auto& o) { return CosineAnnealingWarmRestarts(o, {.T_0 = 2, .T_mult = 2}); });
  expect_alike([](auto& o) { return ConstantLR(o); }, [](auto& o) { return ConstantLR(o, {}); });
  expect_alike([](auto& o) { return LinearLR(o); }, [](auto& o) { return LinearLR(o, {}); });
  expect_alike([](auto& o) { return PolynomialLR(o); }, [](auto& o) { return PolynomialLR(o, {}); });
  expect_alike([](auto& o) { return ConstantLR(o, 1.0F / 4, 3); },
               [](auto& o) { return ConstantLR(o, {.factor = 0.25, .total_iters = 3}); });
  expect_alike([](auto& o) { return OneCycleLR(o, 0.1, 8); },
               [](auto& o) { return OneCycleLR(o, {.max_lr = 0.1, .epochs = 2, .steps_per_epoch = 4}); });
  expect_alike([](auto& o) { return optim::swa_utils::SWALR(o, 0.05); },
               [](auto& o) { return optim::swa_utils::SWALR(o, {.swa_lr = 0.05}); });
}

TEST(Guesses, SchedulersOfMomentumAndOfSchedulers) {
  using namespace optim::lr_scheduler;
  torch::optim::SGD optimizer(weights(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const CyclicLR cycle(optimizer, 0.01, 0.1);
  EXPECT_EQ(CyclicLR(optimizer, {.base_lr = 0.01, .max_lr = 0.1}).get_last_lr(), cycle.get_last_lr());
  LinearLR warmup(optimizer, {.start_factor = 0.1, .total_iters = 2});
  CosineAnnealingLR cosine(optimizer, {.T_max = 8});
  const SequentialLR sequence(optimizer, {.schedulers = {warmup, cosine}, .milestones = {2}});
  EXPECT_EQ(sequence.get_last_lr(), SequentialLR(optimizer, {warmup, cosine}, {2}).get_last_lr());
  ChainedScheduler({warmup, cosine}, optimizer).step();
  torch::optim::SGD other(weights(), 0.1);
  const auto before = warmup.state_dict();
  EXPECT_THAT(error_of([&] { ChainedScheduler({warmup, cosine}, other); }), HasSubstr("another optimizer"));
  EXPECT_TRUE(equal(warmup.state_dict(), before));
}

TEST(Guesses, APlateauTakesItsModeFirst) {
  torch::optim::SGD optimizer(weights(), 1.0);
  optim::lr_scheduler::ReduceLROnPlateau scheduler(optimizer, "max", 0.5, 0);
  scheduler.step(1);
  scheduler.step(0);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5));
  optim::lr_scheduler::ReduceLROnPlateau floor(optimizer, {.factor = 0.1, .patience = 0, .min_lr = {0.25}});
  floor.step(0);
  floor.step(1);
  EXPECT_THAT(floor.get_last_lr(), ElementsAre(0.25));
}

// PyTorch's fused=True.
TEST(Guesses, OptimizersTakeArgumentsByName) {
  auto parameters = weights();
  parameters[0].mutable_grad() = torch::full({1}, 2.0);
  optim::SGD(parameters, {.lr = 0.25, .weight_decay = 1.0}).step();
  EXPECT_EQ(parameters[0].item<double>(), 0.25);
  optim::SGD(parameters, 0.125).step();
  EXPECT_EQ(parameters[0].item<double>(), 0);

  optim::AdamW adamw(parameters, {.lr = 3e-4, .betas = {0.9, 0.95}, .weight_decay = 0.1});
  const auto& set = dynamic_cast<const optim::FusedAdamWOptions&>(adamw.param_groups()[0].options());
  EXPECT_EQ(set, optim::FusedAdamWOptions(3e-4).betas({0.9, 0.95}).weight_decay(0.1));
  optim::Adam adam(parameters, {.eps = 1e-6, .amsgrad = true, .maximize = true, .fused = true});
  const auto& chosen = dynamic_cast<const optim::FusedAdamOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(chosen, optim::FusedAdamOptions().eps(1e-6).amsgrad(true).maximize(true));
  const optim::AdamW plain(parameters, {});
  EXPECT_EQ(dynamic_cast<const optim::FusedAdamWOptions&>(plain.param_groups()[0].options()),
            optim::FusedAdamWOptions());
  const optim::RMSprop rmsprop(parameters, 0.01);
}

// As Python's lists of dicts. A value of a group counts even if it is the default of the class.
TEST(Guesses, GroupsOfParametersByName) {
  const torch::nn::Linear net(2, 2);
  const std::vector<at::Tensor> decay{net->weight};
  const std::vector<at::Tensor> others{net->bias};
  optim::AdamW adamw(
      {{.params = decay, .betas = {0.5, 0.75}, .weight_decay = 1e-2}, {.params = others, .weight_decay = 0}},
      {.lr = 0.25, .weight_decay = 0.5});
  const auto of_group = [](const torch::optim::Optimizer& optimizer, std::size_t group) {
    return optimizer.param_groups()[group];
  };
  using AdamW = optim::FusedAdamWOptions;
  EXPECT_EQ(dynamic_cast<const AdamW&>(of_group(adamw, 0).options()),
            AdamW(0.25).betas({0.5, 0.75}).weight_decay(1e-2));
  EXPECT_EQ(dynamic_cast<const AdamW&>(of_group(adamw, 1).options()), AdamW(0.25).weight_decay(0));
  EXPECT_EQ(of_group(adamw, 1).params().size(), 1U);

  const optim::SGD sgd({{.params = decay}, {.params = others, .lr = 1e-2, .nesterov = true}},
                       {.lr = 0.5, .momentum = 0.75});
  using SGD = optim::FusedSGDOptions;
  EXPECT_EQ(dynamic_cast<const SGD&>(of_group(sgd, 0).options()), SGD(0.5).momentum(0.75));
  EXPECT_EQ(dynamic_cast<const SGD&>(of_group(sgd, 1).options()), SGD(1e-2).momentum(0.75).nesterov(true));
  EXPECT_EQ(optim::Adam({{.params = decay}, {.params = others}}).param_groups().size(), 2U);
  EXPECT_EQ(optim::Adam({decay, others}, {.lr = 0.5}).param_groups().size(), 2U) << "groups without values";
  EXPECT_THAT(error_of([&] { optim::SGD({{.params = decay, .lr = -1}}, {.lr = 1}); }), HasSubstr("lr"));
  EXPECT_THAT(error_of([&] {
                optim::SGD({{.params = decay}, {.params = decay}}, {.lr = 1});
              }),
              HasSubstr("group"));
}

// Without the rule which classes have members and which take functions.
TEST(Guesses, StateDictsOfSchedulersAndScalersByFunctions) {
  torch::optim::SGD optimizer(weights(), 1.0);
  optim::lr_scheduler::LinearLR warmup(optimizer, {.start_factor = 0.5, .total_iters = 2});
  optim::lr_scheduler::CosineAnnealingLR cosine(optimizer, {.T_max = 8});
  optim::lr_scheduler::SequentialLR scheduler(optimizer, {warmup, cosine}, {2});
  const Value saved{{"scheduler", state_dict(scheduler)},
                    {"scaler", state_dict(amp::GradScaler("cpu", {.init_scale = 4}))}};
  scheduler.step();
  EXPECT_FALSE(equal(state_dict(scheduler), saved["scheduler"]));
  load_state_dict(scheduler, saved["scheduler"]);
  EXPECT_TRUE(equal(scheduler.state_dict(), saved["scheduler"]));
  amp::GradScaler scaler("cpu");
  load_state_dict(scaler, saved["scaler"]);
  EXPECT_EQ(scaler.get_scale(), 4);
  torch::nn::Linear net(1, 1);
  optim::swa_utils::AveragedModel ema(net);
  EXPECT_TRUE(state_dict(ema).contains("n_averaged"));
}

template <typename Options>
const Options& options_of(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Options&>(optimizer.param_groups()[0].options());
}

TEST(Guesses, EveryOptimizerTakesItsArgumentsByName) {
  const auto parameters = torch::nn::Linear(2, 2)->parameters();
  const optim::NAdam nadam(parameters, {.lr = 0.25, .betas = {0.5, 0.75}, .momentum_decay = 0.5});
  const auto& of_nadam = options_of<optim::NAdam::GroupOptions>(nadam);
  EXPECT_EQ(of_nadam.lr, 0.25);
  EXPECT_EQ(of_nadam.momentum_decay, 0.5);
  EXPECT_EQ(of_nadam.eps, 1e-8);
  EXPECT_EQ(options_of<optim::RAdam::GroupOptions>(optim::RAdam(parameters, 0.5)).get_lr(), 0.5);
  EXPECT_EQ(options_of<optim::Adadelta::GroupOptions>(optim::Adadelta(parameters, {.rho = 0.5})).rho, 0.5);
  const optim::Muon muon({torch::zeros({2, 2}).set_requires_grad(true)},
                         {.momentum = 0.5, .adjust_lr_fn = "match_rms_adamw"});
  EXPECT_EQ(options_of<optim::Muon::GroupOptions>(muon).adjust_lr_fn, optim::MuonAdjustment::match_rms_adamw);
  EXPECT_EQ(options_of<optim::Muon::GroupOptions>(muon).to_dict()["adjust_lr_fn"].as_string(),
            "match_rms_adamw");

  optim::RMSprop rmsprop(parameters, {.lr = 0.25, .alpha = 0.5, .momentum = 0.75, .centered = true});
  EXPECT_EQ(options_of<torch::optim::RMSpropOptions>(rmsprop),
            torch::optim::RMSpropOptions(0.25).alpha(0.5).momentum(0.75).centered(true));
  EXPECT_EQ(options_of<torch::optim::RMSpropOptions>(optim::RMSprop(parameters, {})),
            torch::optim::RMSpropOptions());
  EXPECT_EQ(options_of<torch::optim::AdagradOptions>(optim::Adagrad(parameters, {.lr = 0.5, .eps = 0.25})),
            torch::optim::AdagradOptions(0.5).eps(0.25));
  EXPECT_EQ(options_of<torch::optim::AdagradOptions>(optim::Adagrad(parameters, optim::AdagradArguments())),
            torch::optim::AdagradOptions());
  const optim::LBFGS lbfgs(parameters, {.max_iter = 4, .line_search_fn = "strong_wolfe"});
  EXPECT_EQ(options_of<torch::optim::LBFGSOptions>(lbfgs),
            torch::optim::LBFGSOptions().max_iter(4).max_eval(5).line_search_fn("strong_wolfe"));
  load_state_dict(rmsprop, state_dict(rmsprop));
  static_assert(!std::is_constructible_v<optim::NAdam, std::vector<at::Tensor>, bool>);
}

TEST(Guesses, AveragesAreOfSwaUtils) {
  namespace swa = optim::swa_utils;
  torch::nn::Linear net(1, 1);
  swa::AveragedModel ema(net, {.multi_avg_fn = swa::get_ema_multi_avg_fn(0.5)});
  ema.update_parameters(net);
  const auto before = net->weight.detach().clone();
  const torch::NoGradGuard no_grad;
  net->weight.add_(1);
  ema.update_parameters(net);
  EXPECT_NEAR(ema.parameters()[0].item<double>(), before.item<double>() + 0.5, 1e-6);
  const std::vector<std::tuple<at::Tensor, at::Tensor>> loader{{torch::ones({1, 1}), torch::ones({1})}};
  swa::update_bn(loader, ema);
  swa::AveragedModel resumed(net);
  resumed.load_state_dict(ema.state_dict());
  EXPECT_TRUE(resumed.forward(torch::ones({1, 1})).equal(ema.forward(torch::ones({1, 1}))));
  EXPECT_TRUE(resumed.module()->weight.equal(ema->module()->weight));
  EXPECT_EQ(ema(torch::ones({1, 1})).numel(), 1);
}

TEST(Guesses, AutocastAndGradScalerTakeTheTypeByName) {
  const auto x = torch::ones({2, 2});
  {
    const amp::autocast autocast("cpu", torch::kBFloat16);
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kBFloat16);
  }
  {
    const amp::autocast autocast("cpu", {.dtype = torch::kBFloat16, .enabled = false});
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
  }
  amp::GradScaler scaler("cpu", {.init_scale = 4});
  EXPECT_EQ(scaler.scale(x).sum().item<double>(), 16);
  EXPECT_THAT(error_of([] { const amp::autocast autocast("gpu"); }), HasSubstr("\"gpu\" is not a device"));
}

TEST(Guesses, NamesOfModulesAreThoseOfTorchAndOurs) {
  nn::Linear net(2, 2);
  net->weight.mutable_grad() = torch::full({2, 2}, 3.0);
  EXPECT_EQ(nn::utils::clip_grad_norm_(net, 1.0), 6);
  nn::utils::clip_grad_value_(net->parameters(), 0.125);
  EXPECT_EQ(net->weight.grad().max().item<double>(), 0.125);
  auto norms = nn::SyncBatchNorm::convert_sync_batchnorm(nn::Sequential(nn::BatchNorm1d(2)));
  EXPECT_EQ(nn::functional::relu(norms->forward(torch::ones({2, 2}))).numel(), 4);
  const nn::DataParallel replicas(net, {.device_ids = {"cpu"}});
  EXPECT_EQ(replicas->device_ids().size(), 1);
}

}  // namespace
}  // namespace lockstep
