// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/view_socket.h"
#include "observe/figures.h"
#include "observe/run.h"

namespace lockstep::cli {

// What the launchers of a run show of the ranks of all its hosts.
struct HostsReading {
  observe::Run run{};
  std::map<int, std::int64_t> resident{};  // [rank]: bytes of its process in memory

  // figures_of() of the run, with this memory.
  observe::Figures figures(const HostsReading* earlier = nullptr) const;
};

// Reads what the launchers have sent. A host that shows nothing, or what cannot be read, is among Run::hosts.
HostsReading reading_of(std::vector<launch::HostView> hosts);

// A run on several hosts, asked through the launcher of this one.
class RunOnHosts {
 public:
  // `name`: the PID of a rank on this host or of a process above it such as its launcher, or the launcher's
  // --run-id; empty: the only launcher or run. Throws Error if it has no launcher that can be asked.
  explicit RunOnHosts(const std::string& name);

  // Hosts have 2 s to answer. Throws Error if the launcher of this host does not answer.
  HostsReading read();
  // read() that waits at most for `limit`. nullopt: the answer is not complete, and the next call waits for it.
  std::optional<HostsReading> read_within(std::chrono::milliseconds limit);
  // Whether the launcher of this host has ended.
  bool has_ended() const;

 private:
  int launcher_ = 0;
  std::optional<launch::LauncherQuestion> question_{};
};

}  // namespace lockstep::cli
