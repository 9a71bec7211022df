// SPDX-License-Identifier: BSD-3-Clause
#include "device/module_snapshot.h"

#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::device {
namespace {

using Content = ModuleSnapshot::Content;

// What is noticed after the layer's member, but not its registered tensor, has been replaced.
template <typename Layer, typename Member>
std::string difference_after_replacing(Layer layer, Member member, Content content) {
  torch::nn::Sequential net;
  net->push_back("layer", layer);
  const ModuleSnapshot snapshot(*net, content);
  EXPECT_TRUE(snapshot.matches(*net));
  auto& tensor = (*layer).*member;
  tensor = at::zeros_like(tensor);
  EXPECT_EQ(snapshot.matches(*net), snapshot.difference(*net).empty());
  return snapshot.difference(*net);
}

TEST(ModuleSnapshot, NoticesMembersThatAreNotTheRegisteredTensors) {
  using namespace torch::nn;
  constexpr auto all = Content::parameters_and_buffers;
  const auto parameter = [](const std::string& name) {
    return "parameter layer." + name +
           " has been replaced by another tensor in the layer, but not in the module's parameters()";
  };
  const auto buffer = [](const std::string& name) {
    return "buffer layer." + name +
           " has been replaced by another tensor in the layer, but not in the module's buffers()";
  };
  EXPECT_EQ(difference_after_replacing(Linear(2, 2), &LinearImpl::bias, all), parameter("bias"));
  const BatchNorm1d norm(2);
  EXPECT_EQ(difference_after_replacing(norm, &BatchNorm1dImpl::running_mean, all), buffer("running_mean"));
  EXPECT_EQ(difference_after_replacing(BatchNorm2d(2), &BatchNorm2dImpl::running_var, all),
            buffer("running_var"));
  const InstanceNorm2d instance_norm(InstanceNorm2dOptions(2).track_running_stats(true));
  EXPECT_EQ(difference_after_replacing(instance_norm, &InstanceNorm2dImpl::running_mean, all),
            buffer("running_mean"));
  EXPECT_EQ(
      difference_after_replacing(MultiheadAttention(4, 2), &MultiheadAttentionImpl::in_proj_weight, all),
      parameter("in_proj_weight"));
  EXPECT_EQ(difference_after_replacing(MultiheadAttention(4, 2), &MultiheadAttentionImpl::in_proj_bias, all),
            parameter("in_proj_bias"));
  EXPECT_EQ(difference_after_replacing(GRUCell(2, 2), &GRUCellImpl::weight_hh, all), parameter("weight_hh"));
}

struct ReplaceableLstm : torch::nn::LSTMImpl {
  using LSTMImpl::LSTMImpl;
  void replace_used(std::size_t index) { flat_weights_[index] = at::zeros_like(flat_weights_[index]); }
  void replace_registered(const std::string& name) {
    parameters_[name] = at::zeros_like(parameters_[name]).requires_grad_();
  }
};

// They compute with a list of their own.
TEST(ModuleSnapshot, NoticesWeightsThatARecurrentLayerDoesNotUse) {
  torch::nn::Sequential net;
  const auto layer = std::make_shared<ReplaceableLstm>(2, 3);
  net->push_back("layer", layer);
  const ModuleSnapshot snapshot(*net);
  net->to(torch::kDouble);
  layer->to(torch::kFloat);
  layer->flatten_parameters();
  EXPECT_TRUE(snapshot.matches(*net)) << "the same tensors, in a new list";
  layer->replace_used(3);
  EXPECT_FALSE(snapshot.matches(*net));
  EXPECT_EQ(snapshot.difference(*net),
            "parameter layer.bias_hh_l0 has been replaced by another tensor in the layer, but not in the "
            "module's parameters()");
  layer->to(torch::kFloat);
  EXPECT_TRUE(snapshot.matches(*net)) << "to() takes the registered ones";
  layer->replace_registered("weight_hh_l0");
  EXPECT_FALSE(snapshot.matches(*net));
  EXPECT_EQ(snapshot.difference(*net), "parameter layer.weight_hh_l0 has been replaced by another tensor");
}

TEST(ModuleSnapshot, OfParametersIgnoresBuffers) {
  const torch::nn::BatchNorm1d norm(2);
  EXPECT_EQ(difference_after_replacing(norm, &torch::nn::BatchNorm1dImpl::running_mean, Content::parameters),
            "");
}

}  // namespace
}  // namespace lockstep::device
