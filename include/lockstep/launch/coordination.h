// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <lockstep/launch/environment.h>
#include <lockstep/launch/failure_report.h>

namespace lockstep::launch {

/// What a launcher tells about its node when it joins a run.
struct NodeInfo {
  std::optional<int> node_rank{};
  int ranks = 1;
  std::string role = "default";
  std::string host{};
  bool is_meeting_point = false;  ///< its launcher is the one at which all meet
};

// What a node says. `attempt` is that of the Start it speaks of.

/// The port that rank 0 of the next attempt will serve, held on this node, and where others reach it.
struct Reserved {
  std::string address{};
  std::uint16_t port = 0;
};
/// A rank failed; this node stops its others.
struct Failed {
  int attempt = 0;
  bool consequence = false;  ///< the rank says itself that another one was gone before
  FailureReport report{};
};
/// No process of this node's ranks is left, after a Stop.
struct Stopped {
  int attempt = 0;
};
/// All ranks of this node ended well.
struct Finished {
  int attempt = 0;
};
/// This launcher was asked to end.
struct Leaving {
  std::string reason{};
};
using FromNode = std::variant<Reserved, Failed, Stopped, Finished, Leaving>;

// What a node is told.

/// This node is known; more will follow.
struct Welcome {};
/// Hold a port for rank 0 and answer with Reserved.
struct Reserve {};
struct Start {
  NodePlace place{};
};
/// Stop the ranks and answer with Stopped. `notice` is for the user.
struct Stop {
  int attempt = 0;
  std::string notice{};
};
/// The run is over: well, or with this failure.
struct End {
  std::optional<FailureReport> failure{};
};
/// This node cannot take part.
struct Refused {
  std::string reason{};
};
using ToNode = std::variant<Welcome, Reserve, Start, Stop, End, Refused>;

struct CoordinationOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  bool numbered = false;      ///< nodes come with a node_rank
  std::string master_addr{};  ///< where the first node is reached; empty: what it says
  int max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};
};

/// Decides for all nodes of a run who takes part, when ranks start, stop and start again, and what failed
/// first. A plain state machine: events go in, messages come out, nothing here waits, sends or reads a clock.
///
/// Nodes gather; the first one holds a port; all start. When a rank fails, or a node is lost, all stop, and
/// once no process is left anywhere all start again with a new port, max_restarts times at most. A node that
/// comes later makes all start anew when there is room for it and none has finished, which does not count as
/// a restart, and else waits until one is needed. The run ends well when all nodes of an attempt have
/// finished. PyTorch: torch.distributed.elastic.agent with the c10d and static rendezvous.
class Coordination {
 public:
  using Clock = std::chrono::steady_clock;
  using Node = int;  ///< any number, never used twice
  struct Message {
    Node to = 0;
    ToNode what{};
  };

  Coordination(const CoordinationOptions& options, Clock::time_point now);

  void join(Node node, const NodeInfo& info, Clock::time_point now);
  void hear(Node node, const FromNode& message, Clock::time_point now);
  /// It is gone, unless it was told to End. `why` as in "its connection closed".
  void lose(Node node, const std::string& why, Clock::time_point now);
  void tick(Clock::time_point now);

  /// When tick() should be called next, at the latest.
  std::optional<Clock::time_point> next_tick() const { return next_tick_; }
  bool ended() const { return state_ == State::ended; }
  /// What to send, in this order.
  std::vector<Message> take_messages();

 private:
  enum class State { gathering, reserving, running, stopping, ended };
  enum class Doing { waiting, running, finished, stopped };
  struct Member {
    NodeInfo info{};
    Doing doing = Doing::waiting;
    int place = -1;  // in this attempt
  };

  void leave(Node node, const std::string& why);
  void on(Node node, const Reserved& reserved);
  void on(Node node, const Failed& failed);
  void on(Node node, const Stopped& stopped);
  void on(Node node, const Finished& finished);

  std::string complaint_about(const NodeInfo& info) const;
  void gather(Clock::time_point now);
  bool has_room() const;
  void lose_silent_members();
  void begin_attempt();
  void choose_members();
  NodePlace place_of(std::size_t index, const Reserved& reserved) const;
  void fail(const FailureReport& report, const std::string& notice);
  void fail_if_doubted();
  void stop_members(const std::string& notice);
  void go_on_when_all_stopped();
  bool all_are(Doing doing) const;
  void end(std::optional<FailureReport> failure);
  void send(Node to, ToNode message) { messages_.push_back({.to = to, .what = std::move(message)}); }
  bool takes_part(Node node) const;
  std::string missing_nodes() const;

  CoordinationOptions options_;
  State state_ = State::gathering;
  std::map<Node, Member> nodes_;
  std::vector<Node> members_;  // of this attempt, in the order of their node ranks
  int attempt_ = -1;
  int restarts_ = 0;
  bool hurry_ = false;                    // an attempt failed: go on with those that are there
  std::optional<FailureReport> failure_;  // what ends the run once all have stopped
  std::optional<FailureReport> doubted_;  // a consequence, whose cause may still be told
  bool joined_ = false;                   // a node for which there is room, while others run
  Clock::time_point deadline_;            // of gathering or stopping
  std::optional<Clock::time_point> last_call_;
  std::optional<Clock::time_point> next_tick_;
  Clock::time_point now_;
  std::vector<Message> messages_;
};

}  // namespace lockstep::launch
