// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

namespace lockstep::testing {

inline torch::nn::Conv2d conv3x3(std::int64_t from, std::int64_t to, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride) {
    conv1 = register_module("conv1", conv3x3(from, to, stride));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(to));
    conv2 = register_module("conv2", conv3x3(to, to, 1));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(to));
    if (stride == 1 && from == to) return;
    downsample = register_module(
        "downsample", torch::nn::Sequential(
                          torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 1).stride(stride).bias(false)),
                          torch::nn::BatchNorm2d(to)));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = at::relu(bn1->forward(conv1->forward(x)));
    y = bn2->forward(conv2->forward(y));
    return at::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

// ResNet-18 for small images: [batch, channels, height, width] -> [batch, classes]. The real one is 64 wide.
struct ResNet18Impl : torch::nn::Module {
  explicit ResNet18Impl(std::int64_t width = 64, std::int64_t channels = 3, std::int64_t classes = 10) {
    conv1 = register_module("conv1", conv3x3(channels, width, 1));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(width));
    std::int64_t from = width;
    for (int stage = 0; stage < 4; ++stage) {
      const auto to = width << stage;
      layers->push_back(BasicBlock(from, to, stage == 0 ? 1 : 2));
      layers->push_back(BasicBlock(to, to, 1));
      from = to;
    }
    register_module("layers", layers);
    fc = register_module("fc", torch::nn::Linear(from, classes));
  }
  at::Tensor forward(at::Tensor x) {
    x = layers->forward(at::relu(bn1->forward(conv1->forward(x))));
    return fc->forward(x.mean({2, 3}));
  }
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::Sequential layers;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet18);

}  // namespace lockstep::testing
