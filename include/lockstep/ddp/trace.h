// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/ddp/distributed_data_parallel.h>

namespace lockstep {

/// Records the next `steps` reduced steps on all ranks: forward, backward, each bucket's reduction and what
/// is waited for. At the forward after them rank 0 writes one Chrome trace (chrome://tracing,
/// ui.perfetto.dev) of all ranks to `path`. Called by all ranks. Throws ArgumentError for an empty path, no
/// steps, or while another trace goes on; that forward throws Error when the file cannot be written.
template <typename Module>
void trace(DistributedDataParallel<Module>& ddp, const std::string& path, int steps = 5) {
  ddp->trace(path, steps);
}

}  // namespace lockstep
