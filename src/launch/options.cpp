// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/options.h>

namespace lockstep::launch {

void validate(const LaunchOptions& options) {
  if (options.command.empty() || options.command.front().empty()) {
    throw ArgumentError(
        "no program to run was given: name it after the options, as in \"-- ./train --epochs 3\"");
  }
  if (options.nproc_per_node < 1) {
    throw ArgumentError(
        fmt::format("nproc-per-node is {}: at least one rank is needed", options.nproc_per_node));
  }
  if (options.nnodes < 1)
    throw ArgumentError(fmt::format("nnodes is {}: at least one is needed", options.nnodes));
  if (options.node_rank < 0 || options.node_rank >= options.nnodes) {
    throw ArgumentError(fmt::format("node-rank is {}, but with nnodes {} it lies in 0 .. {}",
                                    options.node_rank, options.nnodes, options.nnodes - 1));
  }
  if (options.master_addr.empty()) throw ArgumentError("master-addr is empty: give node 0's name or address");
  if (options.master_port == std::uint16_t{0}) {
    throw ArgumentError("master-port is 0: give a port from 1 to 65535, or leave it out to get a free one");
  }
  if (options.nnodes > 1 && !options.master_port) {
    throw ArgumentError("master-port is needed with more than one node: all nodes must name the same one");
  }
  if (options.grace_period.count() < 0) throw ArgumentError("grace-period is negative");
}

}  // namespace lockstep::launch
