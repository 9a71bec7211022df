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

/// Seeds a rank of a mesh. Ranks draw apart if their coordinates differ in one of the dimensions `apart`, and
/// alike otherwise. On a mesh, dropout draws apart on ranks with other samples, positions or layers. No rank
/// gets `seed` itself, so the streams differ from that of a module made with it:
///
///     torch::manual_seed(seed);
///     Net net;
///     manual_seed(seed, mesh, {"dp", "pp"});
///
/// Throws ArgumentError for a dimension that the mesh does not have. Not in PyTorch.
void manual_seed(std::uint64_t seed, const DeviceMesh& mesh, const std::vector<std::string>& apart);

}  // namespace lockstep
