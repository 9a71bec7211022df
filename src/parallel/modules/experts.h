// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

#include "modules/named_tensors.h"

namespace lockstep::modules {

// The experts of a MixtureOfExperts on this rank.
class Experts : public torch::nn::Module {
 public:
  explicit Experts(std::optional<ProcessGroup> ranks);
  ~Experts() override;
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;

  // Those that have other experts; nullopt: this rank has all.
  const std::optional<ProcessGroup>& ranks() const { return ranks_; }

 private:
  std::optional<ProcessGroup> ranks_;
};

// Whether the process has experts that other ranks do not have.
bool has_distributed_experts();

// A parameter or buffer of an expert that other ranks do not have.
struct ExpertTensor {
  std::string name;
  at::Tensor tensor;
  ProcessGroup ranks;  // of which each has other experts
};

// Those within the module, which may also be the Experts.
std::vector<ExpertTensor> expert_tensors(const torch::nn::Module& module);

// A function that takes a parameter as one that all ranks of a group have.
struct ParameterSharer {
  const char* name;
  const ProcessGroup& group;
  std::source_location where;
  const char* advice;
};

// Throws ArgumentError if one of the module's tensors is an expert's that other ranks of the group do not
// have. Collective over the group if one is an expert's.
void refuse_experts(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                    const ParameterSharer& sharer);

}  // namespace lockstep::modules
