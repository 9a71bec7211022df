// SPDX-License-Identifier: BSD-3-Clause
#include <concepts>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/grad_scaler.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/optim/fused.h>

namespace lockstep::amp {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
constexpr float kInf = std::numeric_limits<float>::infinity();
static_assert(!std::constructible_from<GradScaler, bool>, "GradScaler(false) would be enabled for cuda:0");

// Counts what the scaler lets through.
class CountingSGD : public torch::optim::SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(std::move(closure));
  }
  int steps = 0;
};

struct Side {
  torch::Tensor weight = torch::tensor({1.0F, 2.0F}, torch::requires_grad());
  CountingSGD optimizer{{weight}, torch::optim::SGDOptions(0.5).momentum(0.9)};

  void backward(GradScaler& scaler, float slope) {
    optimizer.zero_grad();
    scaler.scale((weight * slope).sum()).backward();
  }
};

GradScaler small_scaler() { return GradScaler(torch::kCPU, {.init_scale = 8, .growth_interval = 2}); }

TEST(GradScaler, DividesBeforeTheStep) {
  auto scaler = small_scaler();
  Side side;
  side.backward(scaler, 1);
  EXPECT_EQ(side.weight.grad()[0].item<float>(), 8);
  EXPECT_TRUE(scaler.step(side.optimizer));
  EXPECT_EQ(side.weight.grad()[0].item<float>(), 1);
  EXPECT_EQ(side.weight[0].item<float>(), 0.5);
  scaler.update();
}

TEST(GradScaler, SkipsAStepWithAnInfAndKeepsAllState) {
  auto scaler = small_scaler();
  Side side;
  side.backward(scaler, 1);
  scaler.step(side.optimizer);
  scaler.update();
  const auto weight = side.weight.detach().clone();
  const auto& state = static_cast<torch::optim::SGDParamState&>(*side.optimizer.state().begin()->second);
  const auto momentum = state.momentum_buffer().clone();

  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    const double before = scaler.get_scale();
    side.backward(scaler, bad);
    EXPECT_FALSE(scaler.step(side.optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), before / 2);
  }
  EXPECT_EQ(side.optimizer.steps, 1);
  EXPECT_TRUE(torch::equal(side.weight, weight));
  EXPECT_TRUE(torch::equal(state.momentum_buffer(), momentum));
}

TEST(GradScaler, GrowsAfterSoManyGoodSteps) {
  auto scaler = small_scaler();
  Side side;
  std::vector<double> scales;
  for (const float slope : {1.0F, 1.0F, 1.0F, kInf, 1.0F, 1.0F}) {
    side.backward(scaler, slope);
    scaler.step(side.optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_THAT(scales, ::testing::ElementsAre(8, 16, 16, 8, 8, 16));
}

TEST(GradScaler, SparseGradientsAreDividedInPlace) {
  auto scaler = small_scaler();
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  torch::nn::init::zeros_(table->weight);  // from which differences are exact
  torch::optim::SGD optimizer(table->parameters(), 0.5);
  const auto before = table->weight.detach().clone();
  scaler.scale(table->forward(torch::tensor({1, 1})).sum()).backward();
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ((before - table->weight)[1][0].item<float>(), 1) << "two times a gradient of 1, times 0.5";
  EXPECT_TRUE(torch::equal(before[0], table->weight[0]));
}

TEST(GradScaler, AnInfForOneOptimizerLowersTheScaleButTheOthersStep) {
  auto scaler = small_scaler();
  Side good;
  Side bad;
  good.backward(scaler, 1);
  bad.backward(scaler, kInf);
  EXPECT_TRUE(scaler.step(good.optimizer));
  EXPECT_FALSE(scaler.step(bad.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST(GradScaler, ScalesSeveralOutputsAlike) {
  auto scaler = small_scaler();
  const auto scaled = scaler.scale({torch::ones({2}), torch::full({1}, 2.0)});
  EXPECT_EQ(scaled[0][1].item<float>(), 8);
  EXPECT_EQ(scaled[1][0].item<float>(), 16);
}

TEST(GradScaler, CallsOutOfOrderAreRejected) {
  auto scaler = small_scaler();
  Side side;
  const auto refused = [](const auto& call, const std::string& text) {
    EXPECT_THAT(call, ThrowsMessage<ArgumentError>(HasSubstr(text)));
  };
  refused([&] { scaler.step(side.optimizer); }, "step() before any scale()");
  refused([&] { scaler.unscale_(side.optimizer); }, "unscale_() before any scale()");
  refused([&] { scaler.update(); }, "update() before any scale()");
  const auto loss = scaler.scale(side.weight.sum());
  refused([&] { scaler.update(); }, "without any step() or unscale_()");
  refused([&] { scaler.step(side.optimizer); }, "none of the optimizer's parameters has a gradient");
  scaler = small_scaler();
  side.backward(scaler, 1);
  scaler.unscale_(side.optimizer);
  refused([&] { scaler.unscale_(side.optimizer); }, "already called for this optimizer");
  scaler.step(side.optimizer);
  refused([&] { scaler.unscale_(side.optimizer); }, "unscale_() after step()");
  refused([&] { scaler.step(side.optimizer); }, "step() was already called");
  refused([&] { scaler.step(side.optimizer, [] { return torch::Tensor(); }); }, "closure");
}

struct FusedSide {
  torch::Tensor weight = torch::tensor({1.0F, 2.0F}, torch::requires_grad());
  optim::FusedAdamW optimizer{{weight}, 0.5};

  void iterate(GradScaler& scaler, float slope, bool unscale = false) {
    optimizer.zero_grad();
    scaler.scale((weight * slope).sum()).backward();
    if (unscale) scaler.unscale_(optimizer);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
  }
  float steps() const {
    return dynamic_cast<const optim::FusedAdamParamState&>(*optimizer.state().begin()->second)
        .step()
        .item<float>();
  }
};

TEST(GradScaler, FusedOptimizersUnscaleAndSkipThemselves) {
  for (const bool unscale : {false, true}) {
    auto scaler = small_scaler();
    FusedSide side;
    side.iterate(scaler, 1, unscale);
    EXPECT_EQ(side.weight.grad()[0].item<float>(), 1) << "divided once";
    EXPECT_EQ(side.steps(), 1);
    const auto weight = side.weight.detach().clone();
    side.iterate(scaler, kInf, unscale);
    EXPECT_TRUE(torch::equal(side.weight, weight));
    EXPECT_EQ(side.steps(), 1);
    EXPECT_EQ(scaler.get_scale(), 4);
    side.iterate(scaler, 1, unscale);
    EXPECT_EQ(side.steps(), 2);
  }
}

TEST(GradScaler, AScaleOfTheUserIsMultipliedAndRestored) {
  auto scaler = small_scaler();
  FusedSide side;
  side.optimizer.grad_scale(torch::tensor(2.0F));
  side.iterate(scaler, 1);
  EXPECT_EQ(side.weight.grad()[0].item<float>(), 0.5);
  EXPECT_FALSE(side.optimizer.grad_scale().defined());
  EXPECT_FALSE(side.optimizer.found_inf().defined());
}

TEST(GradScaler, AFusedStepThatFailsLeavesNothingSet) {
  auto scaler = small_scaler();
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  optim::FusedSGD optimizer(table->parameters());
  scaler.scale(table->forward(torch::tensor({1})).sum()).backward();
  EXPECT_THAT([&] { scaler.step(optimizer); }, ThrowsMessage<ArgumentError>(HasSubstr("sparse gradient")));
  EXPECT_FALSE(optimizer.grad_scale().defined());
  EXPECT_FALSE(optimizer.found_inf().defined());
}

TEST(GradScaler, FusedOptimizersAcceptHalfGradientsUnlessUnscaledBefore) {
  auto scaler = small_scaler();
  auto weight = torch::ones({2}, torch::TensorOptions().dtype(torch::kHalf).requires_grad(true));
  optim::FusedSGD optimizer({weight}, 0.5);
  scaler.scale(weight.sum()).backward();
  EXPECT_THAT([&] { scaler.unscale_(optimizer); }, ThrowsMessage<ArgumentError>(HasSubstr("float16")));
  scaler.step(optimizer);
  EXPECT_EQ(weight[0].item<float>(), 0.5);
}

TEST(GradScaler, CallsOutOfOrderAreRejectedWithFusedOptimizers) {
  auto scaler = small_scaler();
  FusedSide side;
  const auto refused = [](const auto& call, const std::string& text) {
    EXPECT_THAT(call, ThrowsMessage<ArgumentError>(HasSubstr(text)));
  };
  const auto loss = scaler.scale(side.weight.sum());
  refused([&] { scaler.step(side.optimizer); }, "has a gradient");
  loss.backward();
  scaler.step(side.optimizer);
  refused([&] { scaler.step(side.optimizer); }, "step() was already called");
  refused([&] { scaler.unscale_(side.optimizer); }, "unscale_() after step()");
}

TEST(GradScaler, HalfGradientsAreRejectedBeforeAnyChange) {
  auto scaler = small_scaler();
  const auto single = torch::ones({1}, torch::requires_grad());
  const auto half = torch::ones({1}, torch::TensorOptions().dtype(torch::kHalf).requires_grad(true));
  torch::optim::SGD optimizer({single, half}, 0.5);
  scaler.scale(single.sum() + half.sum()).backward();
  EXPECT_THAT([&] { scaler.unscale_(optimizer); }, ThrowsMessage<ArgumentError>(HasSubstr("float16")));
  EXPECT_EQ(single.grad().item<float>(), 8);
}

TEST(GradScaler, ArgumentsAreChecked) {
  const auto make = [](const GradScalerOptions& options) {
    return [options] { GradScaler scaler(torch::kCPU, options); };
  };
  EXPECT_THAT(make({.growth_factor = 1}), ThrowsMessage<ArgumentError>(HasSubstr("growth_factor")));
  EXPECT_THAT(make({.backoff_factor = 1}), ThrowsMessage<ArgumentError>(HasSubstr("backoff_factor")));
  EXPECT_THAT(make({.growth_interval = 0}), ThrowsMessage<ArgumentError>(HasSubstr("growth_interval")));
  EXPECT_NO_THROW(make({.growth_factor = 1, .enabled = false})());
  auto scaler = small_scaler();
  scaler.scale(torch::ones({1}));
  EXPECT_THAT([&] { scaler.update(torch::ones({2})); },
              ThrowsMessage<ArgumentError>(HasSubstr("this has 2")));
  scaler.update(torch::full({1}, 32.0));
  EXPECT_EQ(scaler.get_scale(), 32);
  scaler.update(64.0);
  EXPECT_EQ(scaler.get_scale(), 64);
}

TEST(GradScaler, DoesNothingWhenDisabled) {
  GradScaler scaler(torch::kCPU, {.enabled = false});
  Side side;
  side.backward(scaler, kInf);
  scaler.unscale_(side.optimizer);
  EXPECT_TRUE(scaler.step(side.optimizer));
  EXPECT_EQ(side.optimizer.steps, 1);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
}

TEST(GradScaler, WithoutCudaTheDefaultIsDisabledWithAWarning) {
  if (torch::cuda::is_available()) return;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(GradScaler().is_enabled());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("CUDA is not available"));
}

TEST(GradScaler, ContinuesFromACheckpoint) {
  auto scaler = small_scaler();
  Side side;
  side.backward(scaler, 1);
  scaler.step(side.optimizer);
  scaler.update();
  TrainingState saved;
  saved.add("scaler", scaler);
  const auto state = saved.state_dict();

  for (const bool begun : {false, true}) {
    GradScaler resumed(torch::kCPU);
    if (begun) resumed.scale(torch::ones({1}));
    TrainingState training;
    training.add("scaler", resumed).load_state_dict(state);
    EXPECT_TRUE(equal(Value(resumed.state_dict()), Value(scaler.state_dict())));
    side.backward(resumed, 1);
    resumed.step(side.optimizer);
    resumed.update();
    EXPECT_EQ(resumed.get_scale(), 16) << "the second good step of two";
  }
}

TEST(GradScaler, AStateThatDoesNotFitChangesNothing) {
  auto scaler = small_scaler();
  EXPECT_THAT([&] { scaler.load_state_dict({}); }, ThrowsMessage<CheckpointError>(HasSubstr("empty")));
  auto state = small_scaler().state_dict();
  state.set("scale", 4.0);
  state.erase("_growth_tracker");
  EXPECT_THAT([&] { scaler.load_state_dict(state); },
              ThrowsMessage<CheckpointError>(HasSubstr("_growth_tracker")));
  EXPECT_EQ(scaler.get_scale(), 8);
}

}  // namespace
}  // namespace lockstep::amp
