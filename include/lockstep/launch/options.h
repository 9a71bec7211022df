// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <lockstep/launch/streams.h>
#include <lockstep/machine/topology.h>

namespace lockstep::launch {

/// Where the launchers of several nodes meet.
struct Endpoint {
  std::string host{};
  std::uint16_t port = 0;
};

/// Several nodes, each with a launcher of its own.
struct NodesOptions {
  int min_nodes = 1;  ///< the run begins, and goes on after a failure, with at least as many
  int max_nodes = 1;  ///< further launchers wait until one is needed
  /// This node's number, 0 .. max_nodes-1, where every node is told its own (torchrun's static rendezvous;
  /// min_nodes equals max_nodes then). Without it nodes are numbered as they come (torchrun's c10d).
  std::optional<int> node_rank{};
  /// One launcher listens there, and all meet there: with node_rank node 0's, else the first of those that
  /// run on that host.
  Endpoint endpoint{};
  /// Whether this launcher may be the one that listens; default: as described above. torchrun: is_host.
  std::optional<bool> is_host{};
  /// For how long the first min_nodes are waited for, and one that was lost.
  std::chrono::milliseconds join_timeout{600'000};
  /// For how long more than min_nodes are waited for.
  std::chrono::milliseconds last_call_timeout{30'000};
  /// A node of which nothing is heard for so long is lost (its power or network failed; the end of a process
  /// is seen at once).
  std::chrono::milliseconds silence_limit{15'000};
};

/// Where the ranks' output goes. Names and meanings are torchrun's.
struct OutputOptions {
  /// A folder in which this run makes one of its own, with a file for each stream that `redirects` or `tee`
  /// name: <folder>/<run id>_XXXXXX/attempt_<restarts>/<local rank>/stdout.log, stderr.log, error.json.
  /// Empty: one in the system's folder for temporary files, when it is needed.
  std::string log_dir{};
  StreamChoice redirects{};  ///< streams that go to their files only
  StreamChoice tee{};        ///< streams that go to their files and on
  std::set<int> shown{};     ///< local ranks whose output is passed on; empty: all
  /// Lines with one of these texts go also into attempt_<restarts>/filtered_stdout.log (filtered_stderr.log).
  std::vector<std::string> duplicate_stdout_filters{};
  std::vector<std::string> duplicate_stderr_filters{};
  /// Whether what a rank prints on stdout begins with its rank; stderr always does.
  bool mark_lines = true;
  /// What lines begin with instead, with ${role_name}, ${rank}, ${local_rank} and ${host} filled in.
  std::optional<std::string> prefix_template{};
  /// Written, as JSON, when the run fails: what failed first.
  std::string error_file{};
};

/// What to start and where. Names and defaults are torchrun's where torchrun has them.
struct LaunchOptions {
  std::vector<std::string> command = {};  ///< the program, then its arguments; ${local_rank} is filled in
  int program_words = 1;                  ///< how many of them are the program: more with an interpreter
  int nproc_per_node = 1;                 ///< ranks on this node
  std::optional<NodesOptions> nodes{};    ///< none: this node only
  std::string master_addr =
      "127.0.0.1";  ///< where node 0 is reached; with several nodes without node_rank: found
  /// One node: the port for rank 0; none: a free one that no other launch is given. Several nodes: always
  /// found.
  std::optional<std::uint16_t> master_port{};
  std::string local_addr{};         ///< this node's address for the other nodes; empty: found
  std::string run_id = "none";      ///< TORCHELASTIC_RUN_ID
  std::string role = "default";     ///< ROLE_NAME
  int max_restarts = 0;             ///< how often ranks are started again after a failure
  bool virtual_local_rank = false;  ///< LOCAL_RANK is 0 everywhere; each rank sees one GPU, as CUDA device 0
  bool pass_local_rank = false;     ///< the program's first argument is --local-rank=K in local rank K
  /// Signals that end the run, passed on to the ranks.
  std::set<int> stop_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  machine::Binding bind = machine::Binding::none;  ///< whether ranks stay on cores of their own
  std::string memory_allocator = "default";        ///< see allocator_environment()
  OutputOptions output{};
  /// From the signal that asks ranks to stop to the SIGKILL that makes them. torchrun: shutdown_timeout.
  std::chrono::milliseconds grace_period{5000};
};

/// Throws ArgumentError when a field is out of its range or two contradict each other.
void validate(const LaunchOptions& options);

}  // namespace lockstep::launch
