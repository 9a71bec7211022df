// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/host_control.h"
#include "launch/options.h"

namespace lockstep::launch {

// One entry of --hosts.
struct HostEntry {
  std::string name{};          // for the remote shell: name, address or user@name
  std::optional<int> ranks{};  // none: as --nproc-per-node
};

// "a,user@b:4,[fd00::1]:2". Throws ArgumentError for empty and duplicate names and for wrong numbers.
std::vector<HostEntry> parse_hosts(const std::string& text);

struct HostsOptions {
  std::vector<HostEntry> hosts{};
  std::vector<std::string> shell{};  // see remote_shell()
  std::string program{};             // path of `lockstep` on the hosts
  std::vector<NodeOrder> orders{};   // of each host
  std::set<int> stop_signals{};
  std::chrono::milliseconds grace_period{5000};  // of the launchers on the hosts
  // How the launchers meet and what they have in common, for those who look at all ranks from this host, see
  // LaunchView. nullopt: nobody can.
  std::optional<LaunchOptions> view{};
};

// Starts a launcher on each host, by one remote shell each, and forwards their output, stop signals to them,
// and the end of one to the others. Returns the exit code of the run: that of the launcher that failed first,
// or 128 + the stop signal.
//
// - A launcher or a remote shell that ends without success: the others have two seconds to end by themselves,
//   as they do when ranks failed; then they get SIGTERM. If the shell has failed itself (255, ssh's own code,
//   before the launcher has begun, or a signal), they get it at once.
// - The remote shells die with this process, and with it their launchers; see host_control.h.
//
// Throws LaunchError before a process is started, and ArgumentError for an order that is not UTF-8.
int launch_on_hosts(const HostsOptions& options);

}  // namespace lockstep::launch
