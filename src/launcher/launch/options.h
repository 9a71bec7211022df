// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/adopted_node.h"
#include "launch/run_notes.h"
#include "launch/secret.h"
#include "machine/host.h"

namespace lockstep::launch {

// Output streams of a rank. PyTorch: torch.distributed.elastic.multiprocessing.Std.
enum class Streams { none = 0, out = 1, err = 2, all = 3 };

// Streams of every rank of this node, or of single local ranks.
struct StreamChoice {
  Streams every_rank = Streams::none;
  std::map<int, Streams> of_rank{};  // by local rank; other ranks have `every_rank`

  bool has_out(int local_rank) const;
  bool has_err(int local_rank) const;
  bool any() const;
};

// "0" (none), "1" (stdout), "2" (stderr), "3" (both), or by local rank, as in "0:3,1:2". Throws ArgumentError
// naming `option` for anything else. PyTorch: Std.from_str.
StreamChoice parse_streams(const std::string& text, const std::string& option);

// The address of the coordinator.
struct Endpoint {
  std::string host{};
  std::uint16_t port = 0;
};

// "host:port", with brackets around an IPv6 address.
std::string to_text(const Endpoint& endpoint);

// A run on several nodes, with one launcher per node.
struct NodesOptions {
  int min_nodes = 1;  // needed to start and to restart
  int max_nodes = 1;  // further launchers wait until a node is lost
  // This node's number, 0 .. max_nodes-1, in a static rendezvous (min_nodes equals max_nodes then). Without
  // it nodes are numbered in the order in which they join (torchrun's c10d).
  std::optional<int> node_rank{};
  // One launcher listens there: with node_rank that of node 0, else the first one on that host.
  Endpoint endpoint{};
  // Whether this launcher listens there; default: as above. torchrun: is_host.
  std::optional<bool> is_host{};
  // Limit for min_nodes to join, also after a node was lost.
  std::chrono::milliseconds join_timeout{600'000};
  // Limit for more than min_nodes to join.
  std::chrono::milliseconds last_call_timeout{30'000};
  // A node that is silent for so long is lost: its power or network failed. The end of a launcher is detected
  // immediately. A node that waits for the coordinator gives up after four times the coordinator's limit: the
  // coordinator's launcher may be frozen.
  std::chrono::milliseconds silence_limit{15'000};
  // Authenticates the connections between launchers.
  Secret secret{};
};

// Destinations of the ranks' output. Names and meanings are torchrun's.
struct OutputOptions {
  // A folder in which this run creates its own, with a file for each stream in `redirects` or `tee`:
  // <folder>/<run id>_XXXXXX/attempt_<restarts>/<local rank>/stdout.log, stderr.log, error.json. Empty: a
  // temporary folder, if needed.
  std::string log_dir{};
  StreamChoice redirects{};  // streams that go to files only
  StreamChoice tee{};        // streams that go to files and to this process
  std::set<int> shown{};     // local ranks whose output is shown; empty: all
  // Lines with one of these texts also go to attempt_<restarts>/filtered_stdout.log (filtered_stderr.log).
  std::vector<std::string> duplicate_stdout_filters{};
  std::vector<std::string> duplicate_stderr_filters{};
  // Whether stdout lines begin with the rank; stderr lines always do.
  bool mark_lines = true;
  // Replaces the prefix of lines, a space after it included; may contain ${role_name}, ${rank}, ${local_rank}
  // and ${hostname}.
  std::optional<std::string> prefix_template{};
  // Gets the first failure as JSON when the run fails.
  std::string error_file{};
};

// The metrics of this host's ranks over HTTP, see MetricsServer.
struct MetricsOptions {
  std::uint16_t port = 0;               // 0: a free one, which is printed
  std::string bind = "127.0.0.1";       // an address or name of this host
  Secret token{};                       // that requests must have; needed for a `bind` beyond loopback
  std::function<std::string()> text{};  // in Prometheus' format, called for each request by one thread
};

// What the failure of a rank leads to, while restarts are left.
enum class OnLoss {
  restart,       // all ranks stop, and start again
  replace,       // only the rank that failed starts again, while the ranks are in elastic::run()
  shrink,        // the others go on without it, while they are in elastic::run(), even if no restart is left
  oversubscribe  // as replace; the ranks of a lost node start again on the host of another one
};

// As on the command line.
const char* text_of(OnLoss on_loss);
// Whether lost ranks are started again alone.
bool replaces_ranks(OnLoss on_loss);

// The program to start, and where. Names and defaults are torchrun's where torchrun has them.
struct LaunchOptions {
  std::vector<std::string> command = {};  // the program, then its arguments; ${local_rank} is replaced
  int program_words = 1;   // number of words before the arguments: more than 1 with an interpreter
  int nproc_per_node = 1;  // ranks on this node
  std::optional<NodesOptions> nodes{};    // none: this node only
  std::string master_addr = "127.0.0.1";  // address of node 0; detected with several nodes without node_rank
  // The port for rank 0 on one node; none: a free one. With several nodes always a free one.
  std::optional<std::uint16_t> master_port{};
  std::string local_addr{};      // this node's address for the other nodes; empty: detected
  std::string run_id = "none";   // TORCHELASTIC_RUN_ID
  std::string role = "default";  // ROLE_NAME
  int max_restarts = 0;          // number of restarts after failures, those of single ranks included
  OnLoss on_loss = OnLoss::restart;
  int min_ranks = 1;                // with OnLoss::shrink: fewer do not go on
  int spares = 0;                   // processes that are started in advance, to replace ranks; see spare.h
  bool virtual_local_rank = false;  // LOCAL_RANK is 0 everywhere; each rank sees one GPU, as CUDA device 0
  bool pass_local_rank = false;     // the program's first argument is --local-rank=K in local rank K
  // Signals that end the run and are forwarded to the ranks. SIGUSR1 and SIGUSR2 are warnings unless they stand here.
  std::set<int> stop_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  machine::Binding bind = machine::Binding::none;  // how ranks are bound to cores
  std::string memory_allocator = "default";        // see allocator_environment()
  OutputOptions output{};
  std::optional<MetricsOptions> metrics{};
  // From the stop signal to SIGKILL. torchrun: shutdown_timeout.
  std::chrono::milliseconds grace_period{5000};
  // A rank that makes no progress for so long is killed by a companion of the launcher.
  std::optional<std::chrono::milliseconds> progress_timeout{};
  bool shows_limits = false;  // the launcher and rank 0 print tables of their time limits
  // Whether stdin is that of a launcher which `lockstep run --hosts` has started; see host_control.h. Only
  // node 0 then reports a failure that the coordinator has sent to all.
  bool has_host_control = false;
  // A descriptor to which the supervisor of the ranks writes what happens, see account.h; -1: none.
  int account = -1;
  // What this node's ranks do now, in texts of at most a MiB: those numbered first_rank and above, or all of the
  // launcher if `ranks` is 0. Called in a thread of the launcher when someone looks at all hosts, see LaunchView.
  // Throws Error. Null: nobody can.
  std::function<std::vector<std::string>(int first_rank, int ranks)> snapshot{};
  // The descriptor, which does not block, to which the supervisor writes a Look; -1: none.
  int looks = -1;
  // The words of this launcher's command line, to start a launcher that adopts a lost node; see adopted_node.h.
  std::vector<std::string> words{};
  // The descriptor to which the supervisor writes the AdoptedNode of such a launcher; -1: none.
  int adoptions = -1;
  // The lost node whose place this launcher takes.
  std::optional<AdoptedNode> adopted{};
  // In memory that child processes share. May be null.
  RunNotes* notes = nullptr;
};

// Throws ArgumentError when a field is out of range or two fields contradict each other.
void validate(const LaunchOptions& options);

// Resources for ranks.
struct Machine {
  int cores = 1;  // cores that this process may use
  int gpus = 0;   // NVIDIA GPUs that a process started now would see
};

// The resources of this machine.
Machine this_machine();

// The number of ranks for `nproc_per_node`: a whole number above 0, "cpu" (one per core), "gpu" (one per GPU)
// or "auto" (one per GPU, or one per core without GPUs). Throws ArgumentError for anything else, and for
// "gpu" if no GPU is visible. PyTorch: torch.distributed.run.determine_local_world_size.
int worker_count(const std::string& nproc_per_node, const Machine& machine);

// SIGUSR1 or SIGUSR2.
bool is_user_signal(int signal);
// Whether a signal is only forwarded to the ranks, which continue until they end by themselves: SLURM's warning
// before the time limit of a job.
bool is_warning(int signal, const std::set<int>& stop_signals);
// The stop signals and the warnings.
std::set<int> forwarded_signals(std::set<int> stop_signals);

// Parses "SIGTERM,SIGUSR1" for LaunchOptions::stop_signals. Throws ArgumentError for a name that is not a
// signal or cannot be handled.
std::set<int> parse_signals(const std::string& text);

}  // namespace lockstep::launch
