// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/messages.h"

namespace lockstep::launch {

struct CoordinatorOptions {
  SharedOptions shared{};
  std::string host{};         // of the launcher that coordinates the run
  bool numbered = false;      // nodes have a node_rank
  std::string master_addr{};  // address of the first node; empty: the one that it reports
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};
};

// Note [Coordination of nodes]
//
// The Coordinator decides which nodes take part, when ranks start, stop and restart, and which failure was
// first. It is a state machine: events go in, messages come out. It does not wait, send or read a clock, and
// is not thread-safe.
//
//   gathering  waits for min_nodes, then last_call_timeout for more, up to max_nodes
//   reserving  the first member reserves a port
//   running    all members run their ranks, except lost ones whose place is to be taken
//   stopping   all members stop their ranks
//   ended      all nodes have got End
//
//   gathering -> reserving -> running -> stopping -> gathering | ended
//
// When a rank fails or a node is lost, all members stop. When no process is left, they restart with a new
// port, at most max_restarts times. A node that joins later causes a restart if there is room for it and no
// member has finished; this does not count towards max_restarts. Otherwise it waits. The run succeeds when
// all members of an attempt have finished.
//
// A node that replaces a single rank says so; all members learn how many restarts that makes. If nodes replace more ranks
// at one moment than restarts are left, the run ends as after a failure without restarts. If a node has finished, as after
// an interruption, the replacement would wait for its ranks, so the loss is a failure of all.
//
// With OnLoss::replace and OnLoss::oversubscribe the other members go on without a lost one, if none has finished and
// restarts for its ranks are left. Its place stays free for join_timeout, or with oversubscribe for kAdoptLimit, and the
// member with the fewest ranks gets Adopt (note [Nodes that move]). A node that joins with the same number, or without
// numbers with as many ranks, takes the place: it gets Start with the next epoch, and its ranks are replacements. The lost
// launcher cannot come back: its connection is gone, it stops its ranks when it notices that, and the store of the run
// refuses the epoch of its ranks. If nobody comes in time, the run ends. A member whose ranks cannot go on says so.
//
// Invariant: ranks of an attempt start only when no process of the attempt before is left on any node.
// PyTorch: torch.distributed.elastic.agent with the c10d and static rendezvous.
class Coordinator {
 public:
  // For a launcher that another one starts in the place of a lost node.
  static constexpr std::chrono::seconds kAdoptLimit{60};

  using Clock = std::chrono::steady_clock;
  using Node = int;  // unique in the run
  struct Message {
    Node to = 0;
    ToNode what{};
  };

  Coordinator(const CoordinatorOptions& options, Clock::time_point now);

  // Returns why the node was refused; empty if it has joined.
  std::string join(Node node, const NodeInfo& info, Clock::time_point now);
  void handle(Node node, const FromNode& message, Clock::time_point now);
  // The node is gone, and has not said so before. `why`: as in "its connection closed". Ignored after End.
  void lose(Node node, const std::string& why, Clock::time_point now);
  void tick(Clock::time_point now);

  // The latest time for the next tick().
  std::optional<Clock::time_point> next_tick() const;
  // Whether the node waits for a message, so that it gives up if it gets none.
  bool is_waiting(Node node) const;
  bool ended() const { return state_ == State::ended; }
  // Messages to send, in order.
  std::vector<Message> take_messages();

  // A node of this attempt.
  struct MemberNode {
    Node node = 0;
    std::string host{};
    int first_rank = 0;
    int ranks = 0;
  };
  // In the order of their node ranks; empty while nodes gather.
  std::vector<MemberNode> members() const;

 private:
  enum class State { gathering, reserving, running, stopping, ended };
  enum class NodeState { waiting, running, finished, stopped, lost };
  struct Member {
    NodeInfo info{};
    NodeState state = NodeState::waiting;
    int assignment = -1;             // in this attempt
    int epoch = 0;                   // in this attempt: how often its place was taken
    std::optional<Node> host{};      // whose launcher has started this one in the place of a lost node
    FailureReport loss{};            // of a lost one,
    Clock::time_point free_until{};  // whose place is free until then
  };

  void leave(Node node, const std::string& why);
  void remove(Node node, const std::string& why);
  void on(Node node, const Reserved& reserved);
  void on(Node node, const Failed& failed);
  void on(Node node, const Replaced& replaced);
  void on(Node node, const Stopped& stopped);
  void on(Node node, const Finished& finished);
  void on(Node /*node*/, const Seen& /*seen*/) {}

  // In changing_nodes.cpp.
  bool can_go_on_without(const Member& lost) const;
  void go_on_without(Node node, const std::string& why);
  void free_place_of(Node node);
  void order_adopter_of(const Member& lost);
  void replace_adopters_on(Node node);
  std::optional<Node> choose_adopter_of(Node lost) const;
  int ranks_at(Node node) const;
  std::string reason_not_to_take_place(const NodeInfo& info, const Member& lost) const;
  bool take_place(Node node);
  void end_vain_waits();
  void forget_lost_members();
  const Member* lost_member() const;

  bool has_room() const;
  std::string reason_to_refuse(const NodeInfo& info) const;
  std::string reason_to_refuse_number(const NodeInfo& info) const;
  std::string reason_to_refuse_memory(const NodeInfo& info) const;
  std::string missing_nodes() const;

  void gather(Clock::time_point now);
  void set_deadline(Clock::duration limit);
  void lose_silent_first_member();
  void lose_silent_members();
  Clock::duration stop_limit() const;
  void begin_attempt();
  void choose_members();
  NodeAssignment assignment_of(std::size_t index, const Reserved& reserved) const;
  void fail(const FailureReport& report, const std::string& notice);
  void end_pause();
  void stop_members(const std::string& notice);
  void continue_when_all_stopped();
  bool all_are(NodeState state) const;
  bool any_is(NodeState state) const;
  void end(std::optional<FailureReport> failure);
  void send(Node to, ToNode message);
  bool is_member(Node node) const;

  CoordinatorOptions options_;
  State state_ = State::gathering;
  std::map<Node, Member> nodes_;
  std::vector<Node> members_;  // of this attempt, in the order of their node ranks
  Reserved reserved_;          // of this attempt
  int attempt_ = -1;
  int restarts_ = 0;
  int stop_signal_ = 0;                   // of the launcher that is leaving
  bool skip_last_call_ = false;           // after a failed attempt: do not wait for more than min_nodes
  std::optional<FailureReport> failure_;  // ends the run when all have stopped
  std::optional<FailureReport> suspect_;  // may be a consequence of a failure that another node will report
  bool new_node_joined_ = false;          // while others run, and there is room for it
  Clock::time_point deadline_;            // of gathering or stopping
  std::optional<Clock::time_point> last_call_;
  std::optional<Clock::time_point> next_tick_;
  Clock::time_point now_;
  std::vector<Message> messages_;
};

}  // namespace lockstep::launch
