// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/version.h>

#include "base/version.h"

namespace lockstep::launch {

// What the launchers of all nodes of a run must have in common. A node may differ in everything else, such as
// its number of ranks, its role, or its program.
struct SharedOptions {
  std::string lockstep = lockstep::version();
  std::uint64_t messages = formats::kLauncherMessages.number;
  std::string run_id = "none";
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  std::string on_loss = "restart";
};

// The options of a launcher and its host.
struct HostOptions {
  SharedOptions options{};
  std::string host{};
};

// Why `node` cannot join the run that `run` coordinates, with both values and both hosts, for the users of
// both; empty if it can.
std::string difference(const HostOptions& run, const HostOptions& node);

}  // namespace lockstep::launch
