// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include <lockstep/runtime/device_mesh.h>

namespace lockstep {

/// The default CPU generator of this thread: in a rank of spawn_threads() the rank's own generator, otherwise
/// LibTorch's default generator.
at::Generator default_generator();

/// Seeds this rank's default generators: that of the CPU and that of its device. Unlike torch::manual_seed it
/// does not affect other ranks that are threads of this process. PyTorch: `torch.manual_seed`.
void manual_seed(std::uint64_t seed);

/// The same with a seed that differs between ranks whose coordinates in one of the mesh's dimensions `apart`
/// differ, and is equal on the others: so that dropout on a mesh draws apart where ranks have other samples,
/// positions or layers, and alike where they have the same. The seed is never `seed` itself, with which ranks
/// make their module. Throws ArgumentError for a dimension that the mesh does not have. PyTorch:
/// `torch.distributed.tensor._random.manual_seed`.
///
///     torch::manual_seed(seed);
///     Net net;
///     manual_seed(seed, mesh, {"dp", "pp"});
void manual_seed(std::uint64_t seed, const DeviceMesh& mesh, const std::vector<std::string>& apart);

}  // namespace lockstep
