// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <poll.h>
#include <string>
#include <variant>
#include <vector>

#include "base/unique_fd.h"
#include "launch/adopted_node.h"
#include "launch/environment.h"
#include "launch/failure_report.h"
#include "launch/shared_options.h"

namespace lockstep::launch {

// A launcher's description of its node when it joins a run.
struct NodeInfo {
  SharedOptions shared{};
  std::optional<int> node_rank{};
  int ranks = 1;
  std::string role = "default";
  std::string host{};
  bool is_host = false;                 // the coordinator runs in its launcher
  std::int64_t grace_period_ms = 5000;  // from a Stop to SIGKILL for its ranks
  std::string memory{};                 // memory_identity(): ranks of nodes with equal values share memory
  std::vector<int> threads{};           // [local rank] of the operators of its ranks
  bool is_adopter = false;              // another launcher has started it in the place of a lost node
};

// Messages from a node. `attempt` is that of the Start to which the message refers.

// The port for rank 0 of the next attempt, reserved on this node, and this node's address. `store_port`: where this
// launcher serves the store of the run; 0 unless ranks are replaced. `store_token`: what the ranks show it.
struct Reserved {
  std::string address{};
  std::uint16_t port = 0;
  std::uint16_t store_port = 0;
  std::string store_token{};
};
// A rank failed; this node stops its other ranks.
struct Failed {
  int attempt = 0;
  bool consequence = false;  // the rank reported that another rank was gone
  FailureReport report{};
};
// A rank failed in the way of `report`; this node starts it again alone.
struct Replaced {
  int attempt = 0;
  FailureReport report{};
};
// After a Stop: no process of this node's ranks is left.
struct Stopped {
  int attempt = 0;
};
// All ranks of this node succeeded.
struct Finished {
  int attempt = 0;
};
// This launcher ends. `signal`: the stop signal that it received, or 0.
struct Leaving {
  std::string reason{};
  int signal = 0;
};
// A part of what a host's ranks do, see looks.h.
struct Seen {
  int host = 0;               // its place among those that were asked
  std::string name{};         // of the host
  std::string problem{};      // why it shows nothing; no parts come then
  int parts = 0;              // of this host in all, which come in order
  std::string text{};         // one of them
  std::int64_t after_ms = 0;  // from the question to this part
};
using FromNode = std::variant<Reserved, Failed, Stopped, Finished, Leaving, Seen, Replaced>;

// Messages to a node.

// The first message on a connection, to answer with Hello.
struct Challenge {
  std::string challenge{};
};
// The node has joined; further messages follow.
struct Welcome {
  std::string proof{};  // see Secret
  std::int64_t silence_limit_ms = 0;
};
// Reserve a port for rank 0 and answer with Reserved.
struct Reserve {};
struct Start {
  NodeAssignment assignment{};
};
// Stop the ranks and answer with Stopped. `notice` is for the user. `signal`: the stop signal of a launcher
// that left, which the ranks of all nodes get; 0: SIGTERM.
struct Stop {
  int attempt = 0;
  std::string notice{};
  int signal = 0;
};
// How many restarts the run has had, those of single ranks on all nodes included. `rank`: the last one that was replaced;
// -1: it was those of a node.
struct Restarts {
  int attempt = 0;
  int restarts = 0;
  int rank = -1;
};
// For the user.
struct Notice {
  std::string text{};
};
// The run has succeeded, or failed with this failure. `signal`: as in Stop.
struct End {
  std::optional<FailureReport> failure{};
  int signal = 0;
};
// The node cannot take part.
struct Refused {
  std::string reason{};
};
// The coordinator is not frozen. It sends this to waiting nodes three times within the silence limit of its
// Welcome.
struct Alive {};
// Someone asks what the node's ranks do: connect with Purpose::answer and send Seen for each part.
struct Look {
  int id = 0;
  int host = 0;
  int first_rank = 0;  // of the node's ranks in the job,
  int ranks = 0;       // and their number
};
// Another node is lost, and its place is to be taken in this attempt: the ranks of this node go on. A node whose ranks
// cannot answers with Failed and `report`. `epoch`: who takes the place has this one, and the ranks before are refused.
struct Lost {
  int attempt = 0;
  int node_rank = 0;
  int epoch = 0;
  std::string notice{};  // for the user
  FailureReport report{};
};
// Start a launcher in the place of a lost node.
struct Adopt {
  AdoptedNode node{};
};
using ToNode = std::variant<Challenge, Welcome, Reserve, Start, Stop, Notice, End, Refused, Alive, Look, Seen,
                            Restarts, Lost, Adopt>;

// For what a launcher connects: as a node of the run, to see what the ranks of all nodes do, or to answer a
// Look. The last two are connections of their own, so that no order waits behind what is seen.
enum class Purpose { join, look, answer };

// The first message of a launcher. All formats of messages have its host, its version of Lockstep, the number
// of its format, `challenge` and `proof` in the same places; launchers before format 6 give no version.
struct Hello {
  NodeInfo node{};
  std::string challenge{};
  std::string proof{};  // see Secret
  Purpose purpose = Purpose::join;
  int look = 0;   // the Look that is answered,
  int asked = 0;  // and its host
};

// One message is one line of JSON, without its newline. decode_... throw LaunchError for a malformed line.

std::string encode(const Hello& hello);
// Another format than this launcher reads gives only what all formats have.
Hello decode_hello(const std::string& line);

std::string encode(const FromNode& message);
FromNode decode_from_node(const std::string& line);

std::string encode(const ToNode& message);
ToNode decode_to_node(const std::string& line);

// Whether accept() has failed with this errno because descriptors or memory are used up.
bool is_exhaustion(int code);

// A TCP connection that carries lines in both directions. Nothing blocks: the owner polls for events() and
// calls advance().
class LineConnection {
 public:
  // Longer than any message; bounds the memory that a foreign program can use.
  static constexpr std::size_t kMaxLine = std::size_t{4} * 1024 * 1024;
  // Longer than any Hello.
  static constexpr std::size_t kMaxLineOfStranger = 4096;

  LineConnection() = default;
  explicit LineConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  // The kernel reports the connection as broken when the other host is silent for `limit`.
  void set_silence_limit(std::chrono::milliseconds limit) const;

  // The longest line to receive.
  void set_max_line(std::size_t size) { max_line_ = size; }

  int fd() const { return socket_.get(); }
  short events() const { return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT)); }
  // Writes what is possible now; advance() writes the rest. Does not read: the owner would not be woken for
  // those lines.
  void send(const std::string& line);
  // Reads and writes what is possible now.
  void advance();
  // A received line, without its newline.
  std::optional<std::string> take_line();

  // Bytes that wait to be written.
  std::size_t queued() const { return out_.size(); }
  // Bytes that were received and not taken.
  std::size_t received() const { return in_.size(); }

  // Why the connection is broken, or empty. Lines received before can still be taken.
  const std::string& broken() const { return broken_; }

 private:
  void read_some();
  void write_some();

  UniqueFd socket_;
  std::size_t max_line_ = kMaxLine;
  std::string in_;
  std::string out_;
  std::string broken_;
};

}  // namespace lockstep::launch
