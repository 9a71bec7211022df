// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/coordinator.h"
#include "launch/messages.h"

namespace lockstep::launch {

// Note [Looks at all hosts]
//
// `lockstep top --hosts` sees the ranks of all hosts of a run:
//
//   tool -> launcher of its host -> coordinator -> supervisor of each node -> launcher of that node
//        <-                      <-             <------------------------------------------------
//
// The tool and the launcher speak over a local socket (view_socket.h). A launcher asks the coordinator over a
// connection of its own, with the proof that it knows the secret of the run (Purpose::look). The coordinator
// sends a Look to each node over the connection that it has, and the supervisor there writes it into a pipe
// without waiting. Its launcher reads the pipe, looks at the ranks, and sends what it sees over another connection
// (Purpose::answer). The coordinator passes each part on. So the supervisors of the ranks never wait, orders
// never queue behind what is seen, and nothing is connected or read while nobody asks.
//
// Looks is the coordinator's part: events go in, messages come out, as with the Coordinator.
class Looks {
 public:
  using Clock = Coordinator::Clock;
  using Connection = Coordinator::Node;

  static constexpr std::size_t kMost = 4;  // at a time
  static constexpr int kMostParts = 4096;  // of a host: ranks
  // From the question to the last part of a host.
  static constexpr std::chrono::milliseconds kLimit{2'000};

  // Asks these nodes. Returns why not; empty if it does.
  std::string begin(Connection asker, const std::vector<Coordinator::MemberNode>& nodes,
                    Clock::time_point now);
  // A part from a connection that answers a Look. False: nothing more is expected from it.
  bool add(const Hello& from, const Seen& seen, Clock::time_point now);
  // The connection that answers is gone.
  void fail(const Hello& from, const std::string& why, Clock::time_point now);
  // A connection is gone: that of an asker, or of a node.
  void lose(Connection connection, Clock::time_point now);
  void tick(Clock::time_point now);

  std::optional<Clock::time_point> next_tick() const;
  // Who gets the parts that this connection sends.
  std::optional<Connection> asker_of(const Hello& from) const;
  // Messages to send, in order.
  std::vector<Coordinator::Message> take_messages() { return std::exchange(messages_, {}); }

 private:
  struct Host {
    Connection node = 0;
    std::string name{};
    int left = -1;  // parts that are still to come; -1: not known
  };
  struct Asked {
    Connection asker = 0;
    Clock::time_point began{};
    std::map<int, Host> hosts{};  // that have not answered in full
  };

  Asked* find(const Hello& from);
  void give_up(Asked& asked, int host, const std::string& problem, Clock::time_point now);
  void forget_complete();

  std::map<int, Asked> asked_;  // by the id of the Look
  int last_id_ = 0;
  std::vector<Coordinator::Message> messages_;
};

}  // namespace lockstep::launch
