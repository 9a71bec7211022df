// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <torch/nn/module.h>

#include "modules/named_tensors.h"

namespace lockstep::modules {

// For elastic runs. A strategy that leaves a part of a parameter on each rank implements it in the MemoryGuard of the
// module's parameter.
class RankPart {
 public:
  virtual ~RankPart() = default;
  // The part of this rank, which optimizers step.
  virtual at::Tensor part_of(const at::Tensor& parameter) const = 0;
  // Equal for the parameters for which one rejoin() is enough.
  virtual const void* owner() const = 0;
  // As nn::WrapperModule's. The parts keep their memory, and have no gradients afterwards.
  virtual void require_can_rejoin() const = 0;
  virtual void rejoin() = 0;
};

// nullptr: the rank has the whole parameter, or a part that cannot rejoin.
RankPart* rank_part_of(const at::Tensor& parameter);
bool has_rank_parts(const torch::nn::Module& module);

// What the rank has of the module's parameters and buffers, each once: of a parameter with a RankPart, the part.
std::vector<NamedTensor> own_tensors(const torch::nn::Module& module);

}  // namespace lockstep::modules
