// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::device {

// What a module has registered itself, without the copies that its own functions return.
const torch::OrderedDict<std::string, at::Tensor>& own_parameters(const torch::nn::Module& module);
const torch::OrderedDict<std::string, at::Tensor>& own_buffers(const torch::nn::Module& module);
const torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>& own_children(
    const torch::nn::Module& module);

// The tensors with which layers of LibTorch compute instead of the parameters that are registered, by name.
std::vector<std::pair<std::string, at::Tensor>> unregistered_parameters(const torch::nn::Module& module);

}  // namespace lockstep::device
