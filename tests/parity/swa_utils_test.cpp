// SPDX-License-Identifier: BSD-3-Clause
// AveragedModel and update_bn beside Python's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/nn/swa_utils.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential averaged_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(3, 4, 3), BatchNorm2d(BatchNorm2dOptions(4).momentum(0.3)), ReLU(), Flatten(),
                    Linear(16, 5), BatchNorm1d(5));
}

const std::map<std::string, optim::AveragedModelOptions>& averages() {
  static const std::map<std::string, optim::AveragedModelOptions> all{
      {"swa", {}},
      {"swa_fn", {.avg_fn = optim::get_swa_avg_fn()}},
      {"swa_multi", {.multi_avg_fn = optim::get_swa_multi_avg_fn()}},
      {"ema", {.avg_fn = optim::get_ema_avg_fn(0.9)}},
      {"ema_multi", {.multi_avg_fn = optim::get_ema_multi_avg_fn(0.7)}},
      {"ema_buffers", {.multi_avg_fn = optim::get_ema_multi_avg_fn(0.9), .use_buffers = true}},
      {"swa_buffers", {.use_buffers = true}}};
  return all;
}

void expect_equal_dicts(const Dict& ours, const Value& theirs) {
  ASSERT_EQ(ours.size(), theirs.as_dict().size());
  auto expected = theirs.as_dict().begin();
  for (const auto& [key, value] : ours) {
    EXPECT_EQ(key.as_string(), expected->key.as_string());
    EXPECT_TRUE(equal(value, expected->value)) << key.as_string();
    ++expected;
  }
}

class Averages : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempFolder folder;
    run_python("parity/swa_utils.py", {.args = {folder.file("out.pt")}});
    saved_ = std::make_unique<Value>(load(folder.file("out.pt")));
  }
  static void TearDownTestSuite() { saved_.reset(); }
  static const Value& saved(const char* name) { return (*saved_)[name]; }
  static std::unique_ptr<Value> saved_;
};
std::unique_ptr<Value> Averages::saved_;

TEST_F(Averages, MatchPythonBitForBit) {
  const auto& weights = saved("weights").as_items();
  for (const auto& [name, options] : averages()) {
    SCOPED_TRACE(name);
    const auto& states = saved("states")[name].as_items();
    auto net = averaged_net();
    optim::AveragedModel average(net, options);
    for (std::size_t step = 0; step < weights.size(); ++step) {
      load_state_dict(net, weights[step].as_dict());
      average->update_parameters(net);
      expect_equal_dicts(state_dict(average), states[step]);
    }
    optim::AveragedModel resumed(averaged_net(), options);
    load_state_dict(resumed, states[weights.size() - 2].as_dict());
    resumed->update_parameters(net);
    expect_equal_dicts(state_dict(resumed), states.back());
    EXPECT_EQ(resumed->n_averaged().item<std::int64_t>(), 5);
  }
}

TEST_F(Averages, HaveTheStatisticsOfTheirOwnBatches) {
  optim::AveragedModel average(averaged_net());
  load_state_dict(average, saved("states")["swa"].as_items().back().as_dict());
  average->eval();
  std::vector<std::pair<at::Tensor, int>> batches;
  for (const auto& batch : saved("batches").as_items()) batches.emplace_back(batch.as_tensor(), 0);
  optim::update_bn(batches, average);
  EXPECT_FALSE(average->is_training());
  for (const auto& [key, value] : state_dict(average)) {
    EXPECT_TRUE(torch::allclose(value.as_tensor(), saved("bn")[key].as_tensor(), 1e-6, 1e-6))
        << key.as_string();
  }
  const auto layer =
      std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(average->module()->children().at(1));
  EXPECT_EQ(layer->options.momentum(), 0.3);
}

TEST(AveragedModel, UpdatesSyncBatchNormAndRestoresItAfterAnException) {
  SyncBatchNorm layer(torch::nn::BatchNormOptions(2));
  const auto input = torch::tensor({{1.0f, 2.0f}, {3.0f, 6.0f}});
  optim::update_bn(std::vector{input, input + 2}, layer);
  EXPECT_TRUE(layer->running_mean.equal(torch::tensor({3.0f, 5.0f})));
  EXPECT_ANY_THROW(optim::update_bn(std::vector{torch::zeros({2, 3})}, layer));
  EXPECT_EQ(layer->options.momentum(), 0.1);
}

TEST(AveragedModel, RestoresALayerWithTwoNames) {
  torch::nn::BatchNorm1d layer(torch::nn::BatchNormOptions(2).momentum(0.3));
  torch::nn::Sequential net(layer, layer);
  optim::update_bn(std::vector{torch::ones({3, 2})}, net);
  EXPECT_EQ(layer->options.momentum(), 0.3);
}

TEST(AveragedModel, IsACopy) {
  auto net = torch::nn::Linear(2, 2);
  net->bias.set_requires_grad(false);
  const optim::AveragedModel average(net);
  EXPECT_FALSE(average->module()->bias.requires_grad());
  EXPECT_FALSE(average->module()->weight.is_alias_of(net->weight));
  EXPECT_EQ(average->parameters().size(), 2);
}

TEST(AveragedModel, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] { optim::get_ema_avg_fn(1.5); }), HasSubstr("decay = 1.5"));
  EXPECT_THAT(error_of([] {
                optim::AveragedModel(
                    torch::nn::Linear(2, 2),
                    {.avg_fn = optim::get_swa_avg_fn(), .multi_avg_fn = optim::get_swa_multi_avg_fn()});
              }),
              HasSubstr("not both"));
  EXPECT_THAT(error_of([] { optim::AveragedModel(std::shared_ptr<torch::nn::LinearImpl>()); }),
              HasSubstr("is empty"));
  optim::AveragedModel average(torch::nn::Linear(2, 2));
  EXPECT_THAT(error_of([&] { average->update_parameters(torch::nn::Linear(2, 3)); }),
              HasSubstr("weight has the shape [2, 2] in the average and [3, 2] in the model"));
  EXPECT_THAT(error_of([&] { average->update_parameters(averaged_net()); }),
              HasSubstr("weight has the shape [2, 2] in the average and [4, 3, 3, 3] in the model"));
}

struct PlainImpl : torch::nn::Module {
  PlainImpl() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
  torch::nn::Linear layer{2, 2};
};
TORCH_MODULE(Plain);

struct BaseImpl : torch::nn::Cloneable<BaseImpl> {
  BaseImpl() { BaseImpl::reset(); }
  void reset() override { register_parameter("weight", torch::ones({2})); }
};
struct DerivedImpl : BaseImpl {};
TORCH_MODULE(Derived);

TEST(AveragedModel, RefusesAModuleThatCannotBeCloned) {
  const auto advice = HasSubstr("derive it and its submodules from torch::nn::Cloneable");
  EXPECT_THAT(
      error_of([] { optim::AveragedModel{Plain()}; }),
      AllOf(HasSubstr("AveragedModel: the module lockstep::testing::"), HasSubstr("PlainImpl"), advice));
  EXPECT_THAT(error_of([] { optim::AveragedModel(torch::nn::Sequential(torch::nn::Linear(2, 2), Plain())); }),
              AllOf(HasSubstr("Sequential"), HasSubstr("PlainImpl"), advice));
  EXPECT_THAT(error_of([] { optim::AveragedModel{Derived()}; }),
              AllOf(HasSubstr("DerivedImpl cannot"), HasSubstr("BaseImpl"), advice));
  const optim::AveragedModel average(torch::nn::Linear(2, 2));
  EXPECT_THAT(
      error_of([&] { optim::AveragedModel<optim::AveragedModel<torch::nn::Linear>> nested(average); }),
      HasSubstr("its module()"));
}

TEST(AveragedModel, ConsumesNoRandomNumbers) {
  const torch::nn::Linear net(2, 2);
  torch::manual_seed(3);
  const auto expected = torch::rand({2});
  torch::manual_seed(3);
  const optim::AveragedModel average(net);
  EXPECT_TRUE(torch::rand({2}).equal(expected));
}

TEST(AveragedModel, FollowsAnotherDtypeAndRefusesAnotherStructure) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  optim::AveragedModel average(net, {.multi_avg_fn = optim::get_ema_multi_avg_fn(0.5)});
  average->update_parameters(net);
  net->to(torch::kDouble);
  average->update_parameters(net);
  EXPECT_EQ(average->parameters()[0].scalar_type(), torch::kFloat);
  EXPECT_TRUE(average->parameters()[0].allclose(net->parameters()[0].to(torch::kFloat)));
  net[1]->register_parameter("scale", torch::ones({2}, torch::kDouble));
  EXPECT_THAT(error_of([&] { average->update_parameters(net); }),
              HasSubstr("1.scale is in the model, but not in the average"));
  // As many tensors, of the same shapes.
  torch::nn::Sequential other;
  for (const char* name : {"a", "b"}) other->push_back(name, torch::nn::Linear(2, 2));
  EXPECT_THAT(error_of([&] { average->update_parameters(other); }),
              HasSubstr("0.weight of the average has no counterpart"));
}

}  // namespace
}  // namespace lockstep::testing
