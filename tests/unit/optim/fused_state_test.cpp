// SPDX-License-Identifier: BSD-3-Clause
// State of fused optimizers in state dicts and LibTorch's archives, and in optimizers that are not fused.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/fused.h>

namespace lockstep::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor ramp() { return torch::arange(6.0).reshape({2, 3}); }

template <typename Optimizer>
void step_often(Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (auto& parameter : optimizer.param_groups()[0].params()) parameter.mutable_grad() = ramp() - step;
    optimizer.step();
  }
}

// An optimizer with a parameter of its own, that has stepped.
template <typename Optimizer, typename Options>
struct Side {
  explicit Side(const Options& options, int steps = 0) : optimizer({weight}, options) {
    step_often(optimizer, steps);
  }
  at::Tensor weight = ramp().requires_grad_();
  Optimizer optimizer;
};

template <typename From, typename To>
void load_by_archive(From& from, To& to) {
  std::stringstream stream;
  torch::serialize::OutputArchive written;
  from.save(written);
  written.save_to(stream);
  torch::serialize::InputArchive read;
  read.load_from(stream);
  to.load(read);
}

template <typename Optimizer, typename Options>
void expect_archives_are_whole(const Options& options, const Options& other) {
  Side<Optimizer, Options> from(options, 3);
  Side<Optimizer, Options> to(other);
  load_by_archive(from.optimizer, to.optimizer);
  EXPECT_TRUE(equal(state_dict(to.optimizer), state_dict(from.optimizer)));
}

TEST(FusedState, ArchivesOfLibTorchHoldTheWholeState) {
  expect_archives_are_whole<FusedAdamW>(FusedAdamWOptions(0.25).amsgrad(true).maximize(true),
                                        FusedAdamWOptions(0.5));
  expect_archives_are_whole<FusedAdam>(FusedAdamOptions(0.25), FusedAdamOptions(0.5).maximize(true));
  expect_archives_are_whole<FusedSGD>(FusedSGDOptions(0.25).momentum(0.5), FusedSGDOptions(0.5));
}

TEST(FusedState, AnArchiveOfANonFusedOptimizerLoads) {
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  Side<AdamW, AdamWOptions> plain(AdamWOptions(0.25).amsgrad(true), 3);
  Side<FusedAdamW, FusedAdamWOptions> fused(FusedAdamWOptions(0.5));
  load_by_archive(plain.optimizer, fused.optimizer);
  EXPECT_TRUE(equal(state_dict(fused.optimizer).at("state"), state_dict(plain.optimizer).at("state")));
}

TEST(FusedState, AnArchiveKeepsTheRateTensor) {
  const auto rate = torch::tensor(0.5F);
  Side<FusedAdamW, FusedAdamWOptions> from(FusedAdamWOptions(0.25), 1);
  Side<FusedAdamW, FusedAdamWOptions> to((FusedAdamWOptions(rate)));
  load_by_archive(from.optimizer, to.optimizer);
  EXPECT_EQ(rate.item<float>(), 0.25);
  to.optimizer.param_groups()[0].options().set_lr(2);
  EXPECT_EQ(rate.item<float>(), 2) << "still the optimizer's";
  load_by_archive(to.optimizer, from.optimizer);
  EXPECT_EQ(from.optimizer.param_groups()[0].options().get_lr(), 2);
}

TEST(FusedState, AStateDictFillsTheRateTensor) {
  const auto rate = torch::tensor(0.5F);
  Side<FusedAdamW, FusedAdamWOptions> to((FusedAdamWOptions(rate)));
  const auto before = state_dict(to.optimizer);
  Side<FusedAdamW, FusedAdamWOptions> from(FusedAdamWOptions(0.25), 1);
  rate.fill_(8);
  load_state_dict(to.optimizer, state_dict(from.optimizer));
  EXPECT_EQ(rate.item<float>(), 0.25);
  EXPECT_TRUE(state_dict(to.optimizer)["param_groups"].as_items()[0]["lr"].is<at::Tensor>())
      << "as in Python";
  rate.fill_(8);
  load_state_dict(to.optimizer, state_dict(from.optimizer));
  EXPECT_EQ(rate.item<float>(), 0.25) << "the same number as before";
}

TEST(FusedState, ARateSetInLibTorchsOptionsIsSavedBeforeTheNextStep) {
  const auto rate = torch::tensor(0.5F);
  Side<FusedAdamW, FusedAdamWOptions> from((FusedAdamWOptions(rate)));
  auto& options = from.optimizer.param_groups()[0].options();
  static_cast<torch::optim::AdamWOptions&>(options).lr(0.125);
  const auto written = state_dict(from.optimizer);
  EXPECT_EQ(written.at("param_groups").as_items()[0]["lr"].as_tensor().item<float>(), 0.125);
  EXPECT_EQ(rate.item<float>(), 0.5) << "writing changes nothing";
  Side<FusedAdamW, FusedAdamWOptions> to(FusedAdamWOptions(2));
  load_by_archive(from.optimizer, to.optimizer);
  EXPECT_EQ(to.optimizer.param_groups()[0].options().get_lr(), 0.125);
}

using torch::optim::OptimizerParamGroup;

template <typename Optimizer, typename Options>
Optimizer two_groups(const Options& options, std::int64_t second = 1) {
  const std::vector<at::Tensor> more(static_cast<std::size_t>(second));
  OptimizerParamGroup last(more);
  for (auto& parameter : last.params()) parameter = ramp().requires_grad_();
  return Optimizer({OptimizerParamGroup({ramp().requires_grad_()}), last}, options);
}

TEST(FusedState, AStateDictSetsTheRateOfEachGroup) {
  auto from = two_groups<FusedAdamW>(FusedAdamWOptions(0.25));
  from.param_groups()[1].options().set_lr(0.5);
  auto to = two_groups<FusedAdamW>(FusedAdamWOptions(torch::tensor(8.0F)));
  load_state_dict(to, state_dict(from));
  EXPECT_EQ(to.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(to.param_groups()[1].options().get_lr(), 0.5);
}

TEST(FusedState, AnIncompatibleArchiveKeepsTheRateTensor) {
  const auto rate = torch::tensor(0.5F);
  auto from = two_groups<FusedSGD>(FusedSGDOptions(0.25), 2);
  auto to = two_groups<FusedSGD>(FusedSGDOptions(rate));
  EXPECT_THROW(load_by_archive(from, to), c10::Error);
  to.param_groups()[0].options().set_lr(2);
  EXPECT_EQ(rate.item<float>(), 2);
}

TEST(FusedState, OptionsOfAnotherClassAreConvertedOrRejected) {
  Side<FusedAdamW, FusedAdamWOptions> side(FusedAdamWOptions(0.25));
  auto& group = side.optimizer.param_groups()[0];
  group.set_options(std::make_unique<torch::optim::AdamWOptions>(0.5));
  EXPECT_EQ(state_dict(side.optimizer).at("param_groups").as_items()[0]["lr"].as_double(), 0.5);
  torch::serialize::OutputArchive archive;
  EXPECT_THAT([&] { side.optimizer.save(archive); },
              ThrowsMessage<ArgumentError>(HasSubstr("FusedAdamW: the options of group 0 were replaced")));
  load_state_dict(side.optimizer, state_dict(side.optimizer));
  EXPECT_NE(dynamic_cast<const FusedAdamWOptions*>(&group.options()), nullptr);
  group.set_options(std::make_unique<torch::optim::SGDOptions>(0.5));
  EXPECT_THAT([&] { state_dict(side.optimizer); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("group 0"), HasSubstr("SGDOptions"))));
  torch::optim::SGD plain({ramp().requires_grad_()}, 0.5);
  plain.param_groups()[0].set_options(std::make_unique<torch::optim::AdamWOptions>(0.5));
  EXPECT_THROW(state_dict(plain), ArgumentError);
}

TEST(FusedState, LoadsIntoNonFusedOptimizersAndBack) {
  using torch::optim::Adam;
  using torch::optim::AdamOptions;
  Side<FusedAdam, FusedAdamOptions> fused(FusedAdamOptions(0.25).amsgrad(true), 3);
  Side<Adam, AdamOptions> plain(AdamOptions(0.5));
  load_state_dict(plain.optimizer, state_dict(fused.optimizer));
  EXPECT_TRUE(equal(state_dict(plain.optimizer).at("state"), state_dict(fused.optimizer).at("state")));
  Side<FusedAdam, FusedAdamOptions> back(FusedAdamOptions(0.5).maximize(true));
  load_state_dict(back.optimizer, state_dict(plain.optimizer));
  EXPECT_TRUE(equal(state_dict(back.optimizer), state_dict(fused.optimizer)));
}

TEST(FusedState, UnsupportedOrForeignStateIsRejected) {
  Side<FusedAdamW, FusedAdamWOptions> fused(FusedAdamWOptions(0.25).maximize(true), 1);
  Side<torch::optim::AdamW, torch::optim::AdamWOptions> plain(torch::optim::AdamWOptions(0.5));
  Side<FusedAdam, FusedAdamOptions> adam(FusedAdamOptions(0.5));
  EXPECT_THAT([&] { load_state_dict(plain.optimizer, state_dict(fused.optimizer)); },
              ThrowsMessage<CheckpointError>(HasSubstr("maximize=True")));
  EXPECT_THAT([&] { load_state_dict(adam.optimizer, state_dict(fused.optimizer)); },
              ThrowsMessage<CheckpointError>(HasSubstr("is of AdamW, but the optimizer is Adam")));
  auto damaged = state_dict(fused.optimizer);
  damaged.at("state").as_dict().at(0).as_dict().set("step", torch::full({}, std::nanf("")));
  EXPECT_THAT([&] { load_state_dict(fused.optimizer, damaged); },
              ThrowsMessage<CheckpointError>(HasSubstr("not a count")));
}

TEST(FusedState, LoadedStateHasTheLayoutOfTheKernels) {
  const auto weight_of = [](at::MemoryFormat format) {
    return torch::arange(24.0).reshape({1, 2, 3, 4}).contiguous(format).requires_grad_();
  };
  auto rows = weight_of(at::MemoryFormat::Contiguous);
  auto channels = weight_of(at::MemoryFormat::ChannelsLast);
  FusedAdamW first({rows}, 0.5);
  FusedAdamW second({channels}, 0.5);
  const auto step = [](at::Tensor& weight, FusedAdamW& optimizer) {
    weight.mutable_grad() = weight.detach() - 3;
    optimizer.step();
  };
  step(rows, first);
  load_state_dict(second, state_dict(first));
  {
    const torch::NoGradGuard no_grad;
    channels.copy_(rows);
  }
  step(rows, first);
  step(channels, second);
  EXPECT_TRUE(torch::equal(rows, channels));
}

}  // namespace
}  // namespace lockstep::optim
