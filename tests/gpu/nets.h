// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

#include <torch/torch.h>

#include "parity/models/gpt.h"
#include "parity/models/mnist_nets.h"

// The nets of gpu_training, whose Python twins are in gpu_training.py; modules are made in the same order.
namespace lockstep::gpu {

inline torch::nn::Conv2d conv(std::int64_t from, std::int64_t to, std::int64_t kernel,
                              std::int64_t stride = 1) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(std::int64_t from, std::int64_t width, std::int64_t stride) {
    conv1 = register_module("conv1", conv(from, width, 1));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(width));
    conv2 = register_module("conv2", conv(width, width, 3, stride));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(width));
    conv3 = register_module("conv3", conv(width, 4 * width, 1));
    bn3 = register_module("bn3", torch::nn::BatchNorm2d(4 * width));
    if (stride == 1 && from == 4 * width) return;
    downsample = register_module("downsample", torch::nn::Sequential(conv(from, 4 * width, 1, stride),
                                                                     torch::nn::BatchNorm2d(4 * width)));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::relu(bn1->forward(conv1->forward(x)));
    y = torch::relu(bn2->forward(conv2->forward(y)));
    y = bn3->forward(conv3->forward(y));
    return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

struct ResNet50Impl : torch::nn::Module {
  ResNet50Impl() {
    conv1 = register_module("conv1", conv(3, 64, 7, 2));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(64));
    constexpr std::int64_t kBlocks[] = {3, 4, 6, 3};
    std::int64_t from = 64;
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t width = 64 << stage;
      for (std::int64_t block = 0; block < kBlocks[stage]; ++block) {
        layers->push_back(Bottleneck(from, width, block == 0 && stage > 0 ? 2 : 1));
        from = 4 * width;
      }
    }
    register_module("layers", layers);
    fc = register_module("fc", torch::nn::Linear(2048, 1000));
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(bn1->forward(conv1->forward(x))), 3, 2, 1);
    return fc->forward(layers->forward(x).mean({2, 3}));
  }
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::Sequential layers;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet50);

// Those of gpt125m and gpt500m are for speed: no dropout, and a vocabulary that is a multiple of 128.
inline const std::map<std::string, testing::GptOptions>& gpt_options() {
  static const std::map<std::string, testing::GptOptions> options{
      {"gpt", {.vocabulary = 8192, .context = 256, .width = 512, .heads = 8, .layers = 8}},
      {"gpt125m",
       {.vocabulary = 50304, .context = 1024, .width = 768, .heads = 6, .layers = 12, .dropout = 0}},
      {"gpt500m",
       {.vocabulary = 50304, .context = 1024, .width = 1280, .heads = 10, .layers = 22, .dropout = 0}}};
  return options;
}

struct Batch {
  at::Tensor input;
  at::Tensor target;  // of classes
};

// Calls use(net, batch, classes): the net on the CPU, a batch of `size` there.
template <typename Use>
auto with_net(const std::string& name, std::int64_t size, Use use) {
  torch::manual_seed(1);
  const auto classes_of = [&](std::int64_t classes) { return torch::randint(classes, {size}, at::kLong); };
  if (name == "resnet50") {
    const auto images = torch::randn({size, 3, 224, 224});
    const auto labels = classes_of(1000);
    torch::manual_seed(0);
    return use(ResNet50(), Batch{images, labels});
  }
  if (const auto gpt = gpt_options().find(name); gpt != gpt_options().end()) {
    const auto& options = gpt->second;
    const auto ids = torch::randint(options.vocabulary, {size, options.context}, at::kLong);
    // Different from the inputs, which tied weights would predict from the first step on.
    const auto targets = torch::randint(options.vocabulary, {size, options.context}, at::kLong);
    torch::manual_seed(0);
    return use(testing::Gpt(options), Batch{ids, targets});
  }
  const auto images = torch::randn({size, 1, 28, 28});
  const auto labels = classes_of(10);
  torch::manual_seed(0);
  return use(testing::MnistNet(), Batch{images, labels});
}

}  // namespace lockstep::gpu
