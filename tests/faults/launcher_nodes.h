// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/sockets.h"
#include "support/launcher_process.h"

// Launchers of several nodes on this host.
namespace lockstep::testing {

using Words = std::vector<std::string>;

inline std::string last_line(const LauncherProcess& launcher) {
  const auto lines = lines_of(launcher.err());
  return lines.empty() ? "" : lines.back();
}

// A launcher of one of several nodes on this host.
inline LauncherProcess node(const Words& options, const std::string& script, const std::string& secret = "") {
  Words arguments{"run"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const char* word : {"--", "/bin/sh", "-c"}) arguments.emplace_back(word);
  arguments.push_back(script);
  return LauncherProcess(arguments, {.env = {{"LOCKSTEP_SECRET", secret}}});
}

inline SocketAddress loopback(int port) { return resolve_now("127.0.0.1", port).addresses.front(); }

inline void wait_for_listener(const std::string& port) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!deadline.expired()) {
    if (connect_to(loopback(std::stoi(port)), deadline)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw std::runtime_error("nobody listens at port " + port);
}

inline Words numbered(int node_rank, const std::string& port, Words more = {}) {
  more.insert(more.begin(),
              {"--nnodes", "2", "--node-rank", std::to_string(node_rank), "--master-port", port});
  return more;
}

inline Words as_they_come(const std::string& nnodes, const std::string& port, Words more = {}) {
  more.insert(more.begin(), {"--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                             "127.0.0.1:" + port, "--rdzv-id", "test"});
  return more;
}

}  // namespace lockstep::testing
