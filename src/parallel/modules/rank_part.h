// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "modules/named_tensors.h"

namespace lockstep::modules {

// For elastic runs. Owns the parts that rejoin together, such as those of a module and its children.
class RankPartOwner {
 public:
  virtual ~RankPartOwner() = default;
  // As nn::WrapperModule's. The parts keep their memory, and have no gradients afterwards.
  virtual void require_can_rejoin() const = 0;
  // rejoin() returns to the settings of now, which a replacement has at this place.
  virtual void keep_settings() = 0;
  // Makes no call.
  virtual void rejoin() = 0;
};

// A module may communicate without being in the state of the run, such as a frozen teacher.
void add_owner(std::weak_ptr<RankPartOwner> owner);
// Those of the process that exist.
std::vector<std::shared_ptr<RankPartOwner>> living_owners();

// For elastic runs. A strategy that leaves a part of a parameter on each rank implements it in the MemoryGuard of the
// module's parameter.
class RankPart {
 public:
  virtual ~RankPart() = default;
  // The part of this rank, which optimizers step. Undefined: the tensor only shares the parameter's storage.
  virtual at::Tensor part_of(const at::Tensor& parameter) const = 0;
  virtual RankPartOwner& owner() const = 0;
};

// nullptr: the rank has the whole parameter, or a part that cannot rejoin.
RankPart* rank_part_of(const at::Tensor& parameter);
bool has_rank_parts(const torch::nn::Module& module);

// What the rank has of the module's parameters and buffers, each once: of a parameter with a RankPart, the part.
// Throws ArgumentError naming a parameter that only shares the storage of such a one.
std::vector<NamedTensor> own_tensors(const torch::nn::Module& module);

}  // namespace lockstep::modules
