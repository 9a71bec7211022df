// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/serialize/value.h>

// The states of the random generators of a rank.
namespace lockstep::checkpointing {

// The default generators of the GPUs.
struct GpuGenerators {
  std::vector<at::Generator> all{};  // by index, of all GPUs that this process may use
  std::size_t own = 0;               // index of the calling thread's current GPU
  bool only_own = false;             // the others are, or may be, those of other ranks
};

// The state of the CPU generator or, with GPUs, {"cpu": state, "cuda": [state, ...]}; with `only_own`
// {"cpu": state, "own_cuda": state}. PyTorch: `torch.get_rng_state()`, `torch.cuda.get_rng_state_all()`.
Value generator_states(at::Generator cpu, GpuGenerators gpus);

// The state of a rank's own GPU applies to its current one, whatever its index. GPUs without a saved state
// keep theirs; states of missing GPUs are ignored with a warning. Throws CheckpointError for an invalid
// state.
void set_generator_states(at::Generator cpu, GpuGenerators gpus, const Value& states);

}  // namespace lockstep::checkpointing
