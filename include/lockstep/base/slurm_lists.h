// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// SLURM's compressed host list, e.g. "gpu[01-03,07],login1" or "rack[1-2]n[1-4]": gpu01, gpu02, ...
/// Throws RendezvousError for a list that is not well formed.
std::vector<std::string> expand_node_list(const std::string& list);

/// SLURM's tasks per node, e.g. "4(x2),3": 4, 4, 3. Throws RendezvousError likewise.
std::vector<int> expand_tasks_per_node(const std::string& list);

}  // namespace lockstep
