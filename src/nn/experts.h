// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

#include "nn/named_tensors.h"

namespace lockstep::nn {

// A function that takes a parameter as one that all ranks of a group have.
struct ParameterSharer {
  const char* name;
  const ProcessGroup& group;
  std::source_location where;
  const char* advice;
};

// Throws ArgumentError if one of the module's tensors is an expert's that other ranks of the group do not
// have.
void refuse_experts(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                    const ParameterSharer& sharer);

}  // namespace lockstep::nn
