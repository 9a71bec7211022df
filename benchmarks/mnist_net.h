// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

// The net of pytorch/mnist.py.
struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Dropout2d dropout1{register_module("dropout1", torch::nn::Dropout2d(0.25))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(1600, 500))};
  torch::nn::Dropout dropout2{register_module("dropout2", torch::nn::Dropout(0.5))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(500, 10))};

  // [batch, 1, 28, 28] -> [batch, 10]
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));
    x = dropout1->forward(x).flatten(1);
    return fc2->forward(dropout2->forward(torch::relu(fc1->forward(x))));
  }
};
TORCH_MODULE(Net);
