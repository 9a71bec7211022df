// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/training/trainer.h>

#include "modules/named_tensors.h"

namespace lockstep::training {

// The options; throws ArgumentError for those that are invalid.
TrainerOptions checked(const TrainerOptions& options);

// The ranks that train the module together. Throws ArgumentError if nothing keeps their modules equal. `ddp`:
// nullptr for another module.
std::optional<ProcessGroup> trainer_group(const DistributedDataParallelModule* ddp, bool is_sharded);

// What an optimizer of the module steps.
std::vector<modules::NamedTensor> optimizable_parameters(const torch::nn::Module& module,
                                                         const std::optional<FSDPModule>& sharded);
std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> weak(
    const std::vector<modules::NamedTensor>& parameters);

// The options of what the Trainer makes.
CheckpointManagerOptions manager_options(const TrainerOptions& options,
                                         const std::optional<ProcessGroup>& group, bool is_sharded);
StepVerifierOptions verifier_options(const TrainerOptions& options, torch::optim::Optimizer& optimizer);

// Throws ArgumentError if the optimizer has a tensor that was a parameter and is none of `parameters` now.
// Such a tensor is one of `first_parameters`, or has the shape of a parameter and no other owner. An
// optimizer may have tensors that never were parameters of the module, such as those of a loss.
void check_optimizer(const std::vector<modules::NamedTensor>& parameters,
                     const std::vector<c10::weak_intrusive_ptr<at::TensorImpl>>& first_parameters,
                     const torch::optim::Optimizer& optimizer);

// Throws ArgumentError on all ranks if rank 0's folder has checkpoints: saving into it would fail, or mix two
// runs. Collective.
void check_no_checkpoints(const CheckpointManager& manager, const std::optional<ProcessGroup>& group);

// Throws DesyncError on all ranks, with the name, if a number differs between them in name or bits.
// Collective.
void check_equal_numbers(const Scalars& numbers, const std::optional<ProcessGroup>& group);

// Throws NonFiniteError on all ranks if a parameter of any rank is not finite. Collective.
void check_parameters_finite(const torch::nn::Module& module, std::int64_t step,
                             const std::optional<ProcessGroup>& group);

// The ranks whose loss is not finite, with their first such gradient. Collective.
std::string non_finite_text(double loss, const torch::nn::Module& module, std::int64_t step,
                            const std::optional<ProcessGroup>& group);
// Throws NonFiniteError that names the ranks whose loss is not finite. Collective.
[[noreturn]] void throw_non_finite(double loss, const torch::nn::Module& module, std::int64_t step,
                                   const std::optional<ProcessGroup>& group);

}  // namespace lockstep::training
