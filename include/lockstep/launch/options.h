// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

/// What to start and where. Names and defaults are torchrun's where torchrun has them.
struct LaunchOptions {
  std::vector<std::string> command = {};  ///< the program, then its arguments
  int nproc_per_node = 1;                 ///< ranks on this node
  int nnodes = 1;                         ///< nodes, each with its own launcher and as many ranks as this one
  int node_rank = 0;                      ///< 0 .. nnodes-1; node 0 runs rank 0, which hosts the store
  std::string master_addr = "127.0.0.1";  ///< where node 0 is reached
  std::optional<std::uint16_t>
      master_port{};            ///< none: a free port that no other launch is given (one node only)
  std::string run_id = "none";  ///< TORCHELASTIC_RUN_ID
  bool mark_lines = true;  ///< whether what a rank prints on stdout begins with its rank; stderr always does
  /// From the signal that asks ranks to stop to the SIGKILL that makes them. torchrun: shutdown_timeout.
  std::chrono::milliseconds grace_period{5000};
};

/// Throws ArgumentError when a field is out of its range or two contradict each other.
void validate(const LaunchOptions& options);

}  // namespace lockstep::launch
