// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/base/error.h>

namespace lockstep {
namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(3, 8, 3))};
  torch::nn::Conv2d point{register_module("point", torch::nn::Conv2d(8, 8, 1))};
  torch::nn::Linear fc{register_module("fc", torch::nn::Linear(8, 2))};
  torch::Tensor image = register_buffer("image", torch::randn({1, 3, 4, 4}));
  torch::Tensor volume = register_buffer("volume", torch::randn({1, 3, 4, 4, 4}));
  torch::Tensor forward(const torch::Tensor& x) {
    return fc->forward(point->forward(conv->forward(x)).mean({2, 3}));
  }
};
TORCH_MODULE(Net);

TEST(MemoryFormat, ConvertsTensorsOfFourDimensions) {
  Net net;
  const auto images = torch::randn({2, 3, 8, 8});
  net->forward(images).sum().backward();
  const auto before = net->forward(images);
  const auto weight = net->conv->weight;
  const auto values = weight.detach().clone();
  to_memory_format(net, at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(weight.is_same(net->conv->weight)) << "optimizers know it";
  EXPECT_EQ(weight.strides(), (at::IntArrayRef{27, 1, 9, 3}));
  EXPECT_EQ(weight.grad().strides(), weight.strides());
  EXPECT_TRUE(torch::equal(weight, values));
  EXPECT_EQ(net->point->weight.strides(), (at::IntArrayRef{8, 1, 8, 8})) << "in both formats before";
  EXPECT_EQ(net->image.strides(), (at::IntArrayRef{48, 1, 12, 3}));
  EXPECT_TRUE(net->volume.is_contiguous());
  EXPECT_TRUE(net->fc->weight.is_contiguous());
  EXPECT_TRUE(torch::allclose(net->forward(images), before, 1e-4, 1e-5));

  to_memory_format(*net, at::MemoryFormat::ChannelsLast3d);
  EXPECT_TRUE(net->volume.is_contiguous(at::MemoryFormat::ChannelsLast3d));
  to_memory_format(*net, at::MemoryFormat::Contiguous);
  EXPECT_TRUE(weight.is_contiguous());
  EXPECT_TRUE(net->volume.is_contiguous());
}

TEST(MemoryFormat, PreserveIsRejected) {
  Net net;
  EXPECT_THROW(to_memory_format(net, at::MemoryFormat::Preserve), ArgumentError);
}

}  // namespace
}  // namespace lockstep
