// SPDX-License-Identifier: BSD-3-Clause
// SyncBatchNorm without other ranks; with them it is in tests/multiprocess.
#include <sstream>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

namespace lockstep::sync_batch_norm_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SyncBatchNormAlone, IsABatchNormWithoutARun) {
  torch::manual_seed(1);
  const auto options = torch::nn::BatchNormOptions(3).momentum(std::nullopt);
  SyncBatchNorm ours(options);
  torch::nn::BatchNorm2d plain(options);
  torch::nn::BatchNorm2d converted = convert_sync_batchnorm(torch::nn::BatchNorm2d(options));
  for (int step = 0; step < 3; ++step) {
    const auto input = torch::randn({2, 3, 4, 4});
    const auto expected = plain->forward(input);
    EXPECT_TRUE(torch::equal(ours->forward(input), expected));
    EXPECT_TRUE(torch::equal(converted->forward(input), expected));
  }
  EXPECT_TRUE(torch::equal(ours->running_var, plain->running_var));
  EXPECT_TRUE(torch::equal(converted->running_var, plain->running_var));
  for (const auto& layer :
       std::initializer_list<torch::nn::Module*>{ours.get(), plain.get(), converted.get()})
    layer->eval();
  const auto input = torch::randn({2, 3, 4, 4});
  EXPECT_TRUE(torch::equal(ours->forward(input), plain->forward(input)));
  EXPECT_TRUE(torch::equal(converted->forward(input), plain->forward(input)));
}

TEST(SyncBatchNormAlone, OneValuePerChannelIsRejected) {
  SyncBatchNorm layer(4);
  EXPECT_THAT(
      [&] {
        layer->forward(torch::randn({1, 4}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("one value per channel")));
  layer->eval();
  EXPECT_EQ(layer->forward(torch::randn({1, 4})).sizes(), (std::vector<std::int64_t>{1, 4}));
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (auto* const layer : {&first, &second}) {
      register_module(layer == &first ? "first" : "second", *layer);
    }
    register_module("block", block);
  }
  at::Tensor forward(const at::Tensor& x) { return block->forward(second->forward(first->forward(x))); }
  torch::nn::BatchNorm1d first{torch::nn::BatchNormOptions(2).eps(0.1)};
  torch::nn::BatchNorm1d second{torch::nn::BatchNormOptions(2).affine(false)};
  torch::nn::Sequential block{
      torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(2).track_running_stats(false)),
      torch::nn::Linear(2, 1)};
};
TORCH_MODULE(Net);

TEST(SyncBatchNormAlone, ConversionKeepsEverything) {
  Net net;
  net->first->running_mean.fill_(3);
  net->block->eval();
  freeze(*net, {"first"});
  const auto parameters = net->named_parameters();
  const auto buffers = net->named_buffers();
  convert_sync_batchnorm(*net);  // by reference, twice
  convert_sync_batchnorm(*net);
  ASSERT_EQ(net->named_parameters().size(), parameters.size());
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(item.value().is_same(parameters[item.key()])) << item.key();
  ASSERT_EQ(net->named_buffers().size(), buffers.size());
  EXPECT_EQ(net->first->running_mean[0].item<float>(), 3);
  EXPECT_EQ(net->first->options.eps(), 0.1);
  EXPECT_FALSE(net->first->weight.requires_grad());
  EXPECT_TRUE(net->first->is_training());
  EXPECT_FALSE(net->block->is_training());
  std::stringstream file;
  torch::save(net, file);
  Net loaded;
  torch::load(loaded, file);
  EXPECT_EQ(loaded->first->running_mean[0].item<float>(), 3);
}

TEST(SyncBatchNormAlone, ConvertedLayersWorkInInferenceMode) {
  Net net;
  net->eval();
  const auto input = torch::randn({3, 2});
  const auto expected = net->forward(input);
  convert_sync_batchnorm(net);
  const c10::InferenceMode inference;
  EXPECT_TRUE(torch::equal(net->forward(input), expected));
}

TEST(SyncBatchNormAlone, ALayerOutsideOfASharedPtrIsRejected) {
  torch::nn::BatchNorm1dImpl on_the_stack(2);
  EXPECT_THAT([&] { convert_sync_batchnorm(on_the_stack); },
              ThrowsMessage<ArgumentError>(HasSubstr("shared_ptr")));
}

TEST(SyncBatchNormAlone, PrintsItsOptions) {
  std::ostringstream text;
  text << *SyncBatchNorm(torch::nn::BatchNormOptions(3).momentum(std::nullopt));
  EXPECT_EQ(text.str(),
            "lockstep::SyncBatchNorm(3, eps=1e-05, momentum=None, affine=true, track_running_stats=true)");
}

}  // namespace
}  // namespace lockstep::sync_batch_norm_test
