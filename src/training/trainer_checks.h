// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <lockstep/training/trainer.h>

#include "nn/named_tensors.h"

namespace lockstep::training {

// The options; throws ArgumentError for those that are invalid.
TrainerOptions checked(TrainerOptions options);

// The ranks that train the module together. Throws ArgumentError if nothing keeps their modules equal. `ddp`:
// nullptr for another module.
std::optional<ProcessGroup> trainer_group(const DistributedDataParallelModule* ddp, bool is_sharded);

// Throws ArgumentError if the optimizer has none of the parameters, or another tensor in the place of one, as
// an optimizer has that was made before a parameter was replaced.
void check_optimizer(const std::vector<nn::NamedTensor>& parameters,
                     const torch::optim::Optimizer& optimizer);

// Throws ArgumentError on all ranks if rank 0's folder has checkpoints: saving into it would fail, or mix two
// runs. Collective.
void check_no_checkpoints(const CheckpointManager& manager, const std::optional<ProcessGroup>& group);

}  // namespace lockstep::training
