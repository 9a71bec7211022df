// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep {

/// Sets requires_grad to false on the parameters of which the names match, and returns their names. To be
/// called before DistributedDataParallel wraps the module. A pattern is the name of a parameter or of a
/// module, which then stands for all its parameters; `*` stands for any characters, `?` for one. Throws
/// ArgumentError for a pattern that matches nothing.
///
///     lockstep::freeze(*net, {"backbone", "layer?.*.bias"});
std::vector<std::string> freeze(torch::nn::Module& module, const std::vector<std::string>& patterns);

/// The same with all parameters that match none of the patterns, for fine-tuning: `freeze_all_but(*net,
/// {"fc"})`.
std::vector<std::string> freeze_all_but(torch::nn::Module& module, const std::vector<std::string>& patterns);

}  // namespace lockstep
