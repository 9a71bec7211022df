// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/allocator_environment.h>
#include <lockstep/launch/options.h>

namespace lockstep::launch {
namespace {

void check_node_counts(const NodesOptions& nodes) {
  if (nodes.min_nodes < 1 || nodes.max_nodes < nodes.min_nodes) {
    throw ArgumentError(
        fmt::format("nnodes is {}:{}: the first must be at least 1, the second at least the first",
                    nodes.min_nodes, nodes.max_nodes));
  }
  if (!nodes.node_rank) return;
  if (nodes.min_nodes != nodes.max_nodes) {
    throw ArgumentError(fmt::format(
        "nnodes is {}:{}, a range, but the nodes are numbered by node-rank: use rdzv-backend c10d "
        "with a range, or give one number",
        nodes.min_nodes, nodes.max_nodes));
  }
  if (*nodes.node_rank < 0 || *nodes.node_rank >= nodes.max_nodes) {
    throw ArgumentError(fmt::format("node-rank is {}, but with nnodes {} it lies in 0 .. {}",
                                    *nodes.node_rank, nodes.max_nodes, nodes.max_nodes - 1));
  }
}

void check_nodes(const NodesOptions& nodes) {
  check_node_counts(nodes);
  if (nodes.endpoint.host.empty() || nodes.endpoint.port == 0) {
    throw ArgumentError(
        "several nodes must be told where to meet: rdzv-endpoint HOST:PORT, or master-addr and master-port");
  }
  if (nodes.join_timeout.count() <= 0 || nodes.last_call_timeout.count() < 0 ||
      nodes.silence_limit.count() <= 0) {
    throw ArgumentError("rdzv-conf: timeouts must be positive");
  }
}

void check_ranks(const LaunchOptions& options) {
  if (options.nproc_per_node < 1) {
    throw ArgumentError(
        fmt::format("nproc-per-node is {}: at least one rank is needed", options.nproc_per_node));
  }
  for (const int rank : options.output.shown) {
    if (rank >= 0 && rank < options.nproc_per_node) continue;
    throw ArgumentError(fmt::format("local-ranks-filter names rank {}, but local ranks are 0 .. {}", rank,
                                    options.nproc_per_node - 1));
  }
  for (const auto* choice : {&options.output.redirects, &options.output.tee}) {
    if (choice->of_rank.empty() || choice->of_rank.rbegin()->first < options.nproc_per_node) continue;
    throw ArgumentError(fmt::format("redirects or tee name local rank {}, but local ranks are 0 .. {}",
                                    choice->of_rank.rbegin()->first, options.nproc_per_node - 1));
  }
}

}  // namespace

void validate(const LaunchOptions& options) {
  if (options.command.empty() || options.command.front().empty()) {
    throw ArgumentError(
        "no program to run was given: name it after the options, as in \"-- ./train --epochs 3\"");
  }
  check_ranks(options);
  if (options.nodes) check_nodes(*options.nodes);
  if (options.master_addr.empty()) throw ArgumentError("master-addr is empty: give node 0's name or address");
  if (options.master_port == std::uint16_t{0}) {
    throw ArgumentError("master-port is 0: give a port from 1 to 65535, or leave it out to get a free one");
  }
  if (options.max_restarts < 0) throw ArgumentError("max-restarts is negative");
  if (options.grace_period.count() < 0) throw ArgumentError("grace-period is negative");
  check_allocator(options.memory_allocator);
}

}  // namespace lockstep::launch
