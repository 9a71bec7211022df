// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/serialize/value.h>

namespace lockstep::checkpointing {

/// The default generators of the GPUs whose states this rank keeps.
struct GpuGenerators {
  std::vector<at::Generator> all{};  ///< by index: of all that this process may use
  std::size_t own = 0;               ///< the index of the calling thread's current one
  bool only_own = false;             ///< the others are, or may be, those of other ranks
};
GpuGenerators gpu_generators(bool only_own);

/// The state of the CPU's generator; where there are GPUs {"cpu": it, "cuda": [one each]}, or, of a rank's
/// own one only, {"cpu": it, "own_cuda": its}. PyTorch: `torch.get_rng_state()` and
/// `torch.cuda.get_rng_state_all()`.
Value generator_states(at::Generator cpu, GpuGenerators gpus);

/// The state of a rank's own GPU goes to that which is its own now, whatever their indices. GPUs of which the
/// checkpoint says nothing keep their state; those that are not here are passed over, with a warning. Throws
/// CheckpointError for what is no state.
void set_generator_states(at::Generator cpu, GpuGenerators gpus, const Value& states);

}  // namespace lockstep::checkpointing
