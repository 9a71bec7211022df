// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/serialize/value.h>

namespace lockstep::checkpointing {

/// The default generators of all GPUs that this process may use; none without CUDA.
std::vector<at::Generator> gpu_generators();

/// The state of the CPU's generator; where there are GPUs {"cpu": it, "cuda": [one each]}. PyTorch:
/// `torch.get_rng_state()` and `torch.cuda.get_rng_state_all()`.
Value generator_states(at::Generator cpu, std::vector<at::Generator> gpus);

/// GPUs of which the checkpoint says nothing keep their state; those that are not here are passed over, with
/// a warning. Throws CheckpointError for what is no state.
void set_generator_states(at::Generator cpu, std::vector<at::Generator> gpus, const Value& states);

}  // namespace lockstep::checkpointing
