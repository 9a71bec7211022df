// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::modules {

struct NamedModule {
  std::string name;
  torch::nn::Module* module;
};

// The modules below `root` whose names match component by component. Throws ArgumentError, which names those
// that are most like the pattern, if there are none. `caller`: the function's name.
std::vector<NamedModule> matching_modules(torch::nn::Module& root, const std::string& pattern,
                                          const char* caller, std::source_location where);

}  // namespace lockstep::modules
