// SPDX-License-Identifier: BSD-3-Clause
#include "launch/shared_options.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::launch {
namespace {

std::string nodes_in_words(const SharedOptions& options) {
  if (options.min_nodes == options.max_nodes) return fmt::format("--nnodes {}", options.max_nodes);
  return fmt::format("--nnodes {}:{}", options.min_nodes, options.max_nodes);
}

// The messages of one version change only while it is developed.
std::string version_in_words(const SharedOptions& options, bool same_version) {
  const auto version = options.lockstep.empty() ? "an earlier Lockstep" : "Lockstep " + options.lockstep;
  return same_version ? fmt::format("{} with format {} of messages", version, options.messages) : version;
}

std::string in_words(const HostOptions& run, const std::string& of_run, const HostOptions& node,
                     const std::string& of_node, const char* remedy) {
  return fmt::format("the node on {} has {}, but the node on {}, which coordinates the run, has {}; {}",
                     node.host, of_node, run.host, of_run, remedy);
}

}  // namespace

std::string difference(const HostOptions& run, const HostOptions& node) {
  const auto& ours = run.options;
  const auto& theirs = node.options;
  if (ours.lockstep != theirs.lockstep || ours.messages != theirs.messages) {
    const bool same = ours.lockstep == theirs.lockstep;
    return in_words(run, version_in_words(ours, same), node, version_in_words(theirs, same),
                    "install the same version on all nodes");
  }
  std::vector<std::string> of_run;
  std::vector<std::string> of_node;
  const auto compare = [&](const std::string& left, const std::string& right) {
    if (left == right) return;
    of_run.push_back(left);
    of_node.push_back(right);
  };
  compare(fmt::format("--rdzv-id {}", ours.run_id), fmt::format("--rdzv-id {}", theirs.run_id));
  compare(nodes_in_words(ours), nodes_in_words(theirs));
  compare(fmt::format("--max-restarts {}", ours.max_restarts),
          fmt::format("--max-restarts {}", theirs.max_restarts));
  compare("--on-loss " + ours.on_loss, "--on-loss " + theirs.on_loss);
  if (of_run.empty()) return "";
  return in_words(run, fmt::format("{}", fmt::join(of_run, " and ")), node,
                  fmt::format("{}", fmt::join(of_node, " and ")),
                  "start the launchers of all nodes of a run with the same values");
}

}  // namespace lockstep::launch
