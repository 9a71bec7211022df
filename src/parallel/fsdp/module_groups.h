// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::fsdp {

class ParameterGroup;

// What an optimizer steps: this rank's rows of a parameter that fully_shard() distributes, others as they
// are.
at::Tensor part_of(const at::Tensor& parameter);

// The groups that fully_shard() formed of a module's parameters, for a pipeline, whose plan says when they
// are gathered, freed and reduced.
class ModuleGroups {
 public:
  explicit ModuleGroups(const torch::nn::Module& module);

  bool empty() const { return groups_.empty(); }
  // Collective.
  void unshard() const;
  // Shared parameters stay where they are.
  void reshard() const;
  // From now on, backward neither reduces nor frees.
  void accumulate() const;
  // Before a backward: what the zero_grad() of the module has zeroed.
  void drop_zeroed_gradients() const;
  // After something other than backward has set gradients of parts.
  void note_gradients() const;
  // Reduces what has accumulated, and divides the shards' gradients. Collective.
  void reduce(double divisor) const;

 private:
  void set_reduces(bool reduces) const;

  std::vector<std::shared_ptr<ParameterGroup>> groups_;
};

}  // namespace lockstep::fsdp
