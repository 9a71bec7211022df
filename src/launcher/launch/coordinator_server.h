// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/coordinator.h"
#include "launch/looks.h"
#include "launch/messages.h"
#include "launch/options.h"

namespace lockstep::launch {

// Serves the Coordinator of a run to all launchers that connect. Runs in the launcher process of one node, in
// a thread beside the wait for its guard (see guard.h).
class CoordinatorServer {
 public:
  // Listens immediately. Throws LaunchError naming the port if it cannot.
  CoordinatorServer(const LaunchOptions& options, const NodesOptions& nodes);

  // Raises this process's limit of open files, and serves until `stop` becomes readable. Then sends the end
  // of the run, or of this launcher, to the others, and waits a few seconds for them to close their
  // connections.
  void serve(int stop);
  // For the guard process, which must not hold the port.
  void close() { listener_.reset(); }

 private:
  struct Client {
    LineConnection connection{};
    std::string challenge = random_challenge();
    bool has_joined = false;                   // has sent Hello
    Hello hello{};                             // whose purpose is not to join
    Deadline limit{std::chrono::seconds(10)};  // for Hello, then for a connection that is not a node's

    bool is_node() const { return has_joined && hello.purpose == Purpose::join; }
  };

  void step(int stop);
  int poll_timeout() const;
  void accept_clients();
  void make_room();
  void drop_late_clients();
  void drop(Coordinator::Node node, const std::string& why);
  bool must_wait(const Client& client) const;
  void read(Coordinator::Node node);
  void handle_line(Coordinator::Node node, const std::string& line);
  void handle_hello(Coordinator::Node node, const std::string& line);
  void handle_seen(Coordinator::Node node, const std::string& line);
  void send_messages();
  void send_alive();
  void finish_connections();

  NodesOptions nodes_;
  UniqueFd listener_;
  Coordinator coordinator_;
  Looks looks_;
  std::map<Coordinator::Node, Client> clients_;
  Coordinator::Node next_ = 0;
  Deadline accept_pause_{std::chrono::milliseconds(0)};
  Deadline alive_pause_{std::chrono::milliseconds(0)};
  bool exhaustion_told_ = false;
};

// The options of a Coordinator for this launch.
CoordinatorOptions coordinator_options(const LaunchOptions& options);
// What this launch and those on other nodes must have in common.
SharedOptions shared_options(const LaunchOptions& options);

}  // namespace lockstep::launch
