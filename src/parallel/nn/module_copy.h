// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace lockstep::nn {

using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;

// The module of make(), whose initial weights consume none of the user's random numbers.
std::shared_ptr<torch::nn::Module> make_module(const MakeModule& make);

// A deep copy by the module's clone(), of the same type. Throws ArgumentError for a module that cannot be
// cloned; `user` begins the message, and `otherwise` ends its advice (", or ...").
std::shared_ptr<torch::nn::Module> copy_module(const torch::nn::Module& module, const char* user,
                                               const char* otherwise = "",
                                               std::optional<c10::Device> device = std::nullopt);

}  // namespace lockstep::nn
