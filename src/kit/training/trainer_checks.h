// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <lockstep/training/trainer.h>

#include "modules/named_tensors.h"

namespace lockstep::training {

// The options; throws ArgumentError for those that are invalid.
TrainerOptions checked(TrainerOptions options);

// The ranks that train the module together. Throws ArgumentError if nothing keeps their modules equal. `ddp`:
// nullptr for another module.
std::optional<ProcessGroup> trainer_group(const DistributedDataParallelModule* ddp, bool is_sharded);

// Throws ArgumentError if the optimizer has a tensor that was a parameter and is none of `parameters` now.
// Such a tensor is one of `first_parameters`, or has the shape of a parameter and no other owner. An
// optimizer may have tensors that never were parameters of the module, such as those of a loss.
void check_optimizer(const std::vector<modules::NamedTensor>& parameters,
                     const std::vector<c10::weak_intrusive_ptr<at::TensorImpl>>& first_parameters,
                     const torch::optim::Optimizer& optimizer);

// Throws ArgumentError on all ranks if rank 0's folder has checkpoints: saving into it would fail, or mix two
// runs. Collective.
void check_no_checkpoints(const CheckpointManager& manager, const std::optional<ProcessGroup>& group);

}  // namespace lockstep::training
