// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

namespace lockstep::testing {

// The net of the MNIST example: [batch, 1, 28, 28] -> [batch, 10].
struct MnistNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Dropout2d dropout1{register_module("dropout1", torch::nn::Dropout2d(0.25))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(1600, 500))};
  torch::nn::Dropout dropout2{register_module("dropout2", torch::nn::Dropout(0.5))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(500, 10))};

  at::Tensor forward(at::Tensor x) {
    x = at::relu(at::max_pool2d(conv1->forward(x), 2));
    x = at::relu(at::max_pool2d(conv2->forward(x), 2));
    x = dropout1->forward(x).flatten(1);
    x = dropout2->forward(at::relu(fc1->forward(x)));
    return fc2->forward(x);
  }
};
TORCH_MODULE(MnistNet);

// A linear layer whose weight belongs to another one, as after Python's `b.weight = a.weight`.
struct TiedLinearImpl : torch::nn::Module {
  TiedLinearImpl(const at::Tensor& of_another, std::int64_t features) {
    const torch::nn::Linear drawn(features, features);  // Python draws the weight that it then drops
    weight = register_parameter("weight", of_another);
    bias = register_parameter("bias", drawn->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(TiedLinear);

// BatchNorm and a tied weight: [batch, 1, 28, 28] -> [batch, 10].
struct TiedNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 5).stride(2)))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(8))};
  torch::nn::Linear input{register_module("input", torch::nn::Linear(1152, 32))};
  torch::nn::Linear a{register_module("a", torch::nn::Linear(32, 32))};
  TiedLinear b{register_module("b", TiedLinear(a->weight, 32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 10))};

  at::Tensor forward(at::Tensor x) {
    x = at::relu(norm->forward(conv->forward(x))).flatten(1);
    x = at::relu(input->forward(x));
    x = at::relu(b->forward(at::tanh(a->forward(x))));
    return out->forward(x);
  }
};
TORCH_MODULE(TiedNet);

}  // namespace lockstep::testing
