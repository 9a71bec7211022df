// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <vector>

#include <lockstep/base/deadline.h>
#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/coordination.h>
#include <lockstep/launch/options.h>

#include "launch/line_connection.h"

namespace lockstep::launch {

/// Where the launchers of a run meet: a Coordination for all that connect. Lives in the first process of one
/// of the launches, beside its guard (see guard.h).
class CoordinatorServer {
 public:
  /// Listens at once. Throws LaunchError naming the port when that cannot be.
  CoordinatorServer(const LaunchOptions& options, const NodesOptions& nodes);

  /// Serves until `stop` becomes readable; then tells the others how the run ended, or that this launcher is
  /// gone, and waits for them to hang up, for some seconds at most.
  void serve(int stop);
  /// For the process that goes on as guard: the port is not its own.
  void close() { listener_.reset(); }

 private:
  struct Guest {
    LineConnection connection{};
    bool known = false;  // has said hello
    Deadline hello_limit{std::chrono::seconds(10)};
  };

  void step(int stop);
  int patience() const;
  void accept_guests();
  void drop_silent_strangers();
  void read(Coordination::Node node);
  void handle_line(Coordination::Node node, const std::string& line);
  void greet(Coordination::Node node, const std::string& line);
  void deliver();
  void say_goodbye();

  NodesOptions nodes_;
  std::string run_id_;
  UniqueFd listener_;
  Coordination coordination_;
  std::map<Coordination::Node, Guest> guests_;
  Coordination::Node next_ = 0;
};

/// The options of a Coordination for this launch.
CoordinationOptions coordination_options(const LaunchOptions& options);

}  // namespace lockstep::launch
