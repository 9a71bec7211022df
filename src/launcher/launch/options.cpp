// SPDX-License-Identifier: BSD-3-Clause
#include "launch/options.h"

#include <algorithm>
#include <sstream>
#include <string.h>
#include <string_view>

#include <fmt/format.h>

#include "base/host.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "launch/environment.h"
#include "machine/gpu.h"

namespace lockstep::launch {
namespace {

void check_node_counts(const NodesOptions& nodes) {
  if (nodes.min_nodes < 1 || nodes.max_nodes < nodes.min_nodes) {
    throw_error<ArgumentError>("nnodes is {}:{}: the minimum must be at least 1 and at most the maximum",
                               nodes.min_nodes, nodes.max_nodes);
  }
  if (!nodes.node_rank) return;
  if (nodes.min_nodes != nodes.max_nodes) {
    throw_error<ArgumentError>(
        "nnodes is {}:{}, a range, which needs rdzv-backend c10d; with node-rank, use one number",
        nodes.min_nodes, nodes.max_nodes);
  }
  if (*nodes.node_rank < 0 || *nodes.node_rank >= nodes.max_nodes) {
    throw_error<ArgumentError>("node-rank is {}; with nnodes {} it must be in 0 .. {}", *nodes.node_rank,
                               nodes.max_nodes, nodes.max_nodes - 1);
  }
}

void check_nodes(const NodesOptions& nodes) {
  check_node_counts(nodes);
  if (nodes.endpoint.host.empty() || nodes.endpoint.port == 0) {
    throw ArgumentError(
        "several nodes need a common address: set rdzv-endpoint HOST:PORT, or master-addr and master-port");
  }
  if (nodes.join_timeout.count() <= 0 || nodes.last_call_timeout.count() < 0 ||
      nodes.silence_limit.count() <= 0) {
    throw ArgumentError("rdzv-conf: a timeout is 0 or negative; use seconds above 0");
  }
}

void check_ranks(const LaunchOptions& options) {
  if (options.nproc_per_node < 1) {
    throw_error<ArgumentError>("nproc-per-node is {}: at least one rank is needed", options.nproc_per_node);
  }
  for (const int rank : options.output.shown) {
    if (rank >= 0 && rank < options.nproc_per_node) continue;
    throw_error<ArgumentError>("local-ranks-filter names rank {}, but local ranks are 0 .. {}", rank,
                               options.nproc_per_node - 1);
  }
  for (const auto* choice : {&options.output.redirects, &options.output.tee}) {
    if (choice->of_rank.empty() || choice->of_rank.rbegin()->first < options.nproc_per_node) continue;
    throw_error<ArgumentError>("redirects or tee name local rank {}, but local ranks are 0 .. {}",
                               choice->of_rank.rbegin()->first, options.nproc_per_node - 1);
  }
}

bool names_local_rank(const LaunchOptions& options) {
  return std::ranges::any_of(
      options.command, [](const auto& word) { return word.find("${local_rank}") != std::string::npos; });
}

void check_spares(const LaunchOptions& options) {
  if (options.spares < 0) throw_error<ArgumentError>("spares is {}; it must be 0 or more", options.spares);
  if (options.spares == 0) return;
  if (!replaces_ranks(options.on_loss)) {
    throw_error<ArgumentError>("--spares {} has no effect without --on-loss replace; add it", options.spares);
  }
  if (options.spares > options.max_restarts) {
    throw_error<ArgumentError>(
        "--spares {}, but at most {} ranks are replaced: raise --max-restarts, or lower --spares",
        options.spares, options.max_restarts);
  }
  if (options.pass_local_rank || options.virtual_local_rank || names_local_rank(options)) {
    throw ArgumentError(
        "--spares excludes --pass-local-rank, --virtual-local-rank and ${local_rank} among the arguments: the local rank "
        "of a spare is not known when it starts; let the program read LOCAL_RANK after lockstep::init()");
  }
}

void check_min_ranks(const LaunchOptions& options) {
  if (options.on_loss != OnLoss::shrink && options.min_ranks != 1) {
    throw_error<ArgumentError>("--min-ranks {} has no effect without --on-loss shrink; add it",
                               options.min_ranks);
  }
  if (options.min_ranks >= 1 && options.min_ranks <= options.nproc_per_node) return;
  throw_error<ArgumentError>("--min-ranks is {}; it must be in 1 .. {}, the number of ranks",
                             options.min_ranks, options.nproc_per_node);
}

void check_replacement_on_nodes(const LaunchOptions& options) {
  if (options.on_loss == OnLoss::shrink)
    throw ArgumentError(
        "--on-loss shrink is for one host; with several nodes use --on-loss replace or restart");
  if (options.nodes->min_nodes == options.nodes->max_nodes) return;
  throw_error<ArgumentError>(
      "--on-loss {} needs a fixed number of nodes, and --nnodes is {}:{}; give one number, or use --on-loss restart",
      text_of(options.on_loss), options.nodes->min_nodes, options.nodes->max_nodes);
}

void check_replacement(const LaunchOptions& options) {
  check_spares(options);
  if (options.on_loss == OnLoss::restart) return check_min_ranks(options);
  if (options.nodes) check_replacement_on_nodes(options);
  check_min_ranks(options);
  if (options.on_loss == OnLoss::oversubscribe && !options.nodes) {
    throw ArgumentError(
        "--on-loss oversubscribe needs several hosts, one of which starts the ranks of another one that is lost: add --nnodes, "
        "or use --on-loss replace on one host");
  }
  if (options.on_loss == OnLoss::oversubscribe && !options.nodes->node_rank) {
    throw ArgumentError(
        "--on-loss oversubscribe needs nodes with numbers, and with --rdzv-backend c10d they have none: start the launchers with "
        "--node-rank and --master-addr, or use --on-loss replace");
  }
  if (replaces_ranks(options.on_loss) && options.max_restarts == 0) {
    throw_error<ArgumentError>("--on-loss {} needs restarts: add --max-restarts N, the most replacements",
                               text_of(options.on_loss));
  }
}

}  // namespace

const char* text_of(OnLoss on_loss) {
  if (on_loss == OnLoss::oversubscribe) return "oversubscribe";
  return on_loss == OnLoss::restart ? "restart" : on_loss == OnLoss::replace ? "replace" : "shrink";
}

bool replaces_ranks(OnLoss on_loss) { return on_loss == OnLoss::replace || on_loss == OnLoss::oversubscribe; }

void validate(const LaunchOptions& options) {
  if (options.command.empty() || options.command.front().empty()) {
    throw ArgumentError("no program: name it after the options, as in \"-- ./train --epochs 3\"");
  }
  check_ranks(options);
  if (options.nodes) check_nodes(*options.nodes);
  if (options.master_addr.empty())
    throw ArgumentError("master-addr is empty: set the name or address of node 0");
  if (options.master_port == std::uint16_t{0}) {
    throw ArgumentError("master-port is 0: use 1 to 65535, or omit it to get a free port");
  }
  if (options.max_restarts < 0)
    throw_error<ArgumentError>("max-restarts is {}; it must be 0 or more", options.max_restarts);
  if (options.grace_period.count() < 0)
    throw_error<ArgumentError>("grace-period is {} ms; it must be 0 or more", options.grace_period.count());
  check_replacement(options);
  check_allocator(options.memory_allocator);
}

namespace {

Streams streams_of(const StreamChoice& choice, int local_rank) {
  const auto named = choice.of_rank.find(local_rank);
  return named == choice.of_rank.end() ? choice.every_rank : named->second;
}

bool contains(Streams streams, Streams one) {
  return (static_cast<int>(streams) & static_cast<int>(one)) != 0;
}

std::optional<Streams> one_choice(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return static_cast<Streams>(text[0] - '0');
}

// "1:2" into rank 1's choice.
bool read_pair(const std::string& text, StreamChoice& choice) {
  const auto colon = text.find(':');
  if (colon == std::string::npos || colon == 0) return false;
  const auto rank = parse_number<int>(std::string_view(text).substr(0, colon));
  const auto streams = one_choice(std::string_view(text).substr(colon + 1));
  if (!rank || *rank < 0 || !streams) return false;
  choice.of_rank[*rank] = *streams;
  return true;
}

}  // namespace

std::string to_text(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", endpoint.host, v6 ? "]" : "", endpoint.port);
}

bool StreamChoice::has_out(int local_rank) const {
  return contains(streams_of(*this, local_rank), Streams::out);
}
bool StreamChoice::has_err(int local_rank) const {
  return contains(streams_of(*this, local_rank), Streams::err);
}
bool StreamChoice::any() const { return every_rank != Streams::none || !of_rank.empty(); }

StreamChoice parse_streams(const std::string& text, const std::string& option) {
  StreamChoice choice;
  if (const auto all = one_choice(text)) {
    choice.every_rank = *all;
    return choice;
  }
  std::istringstream pairs(text);
  bool good = !text.empty() && text.back() != ',';
  for (std::string pair; good && std::getline(pairs, pair, ',');) good = read_pair(pair, choice);
  if (good) return choice;
  throw_error<ArgumentError>(
      "{} {}: use 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one of them per local rank, as in "
      "0:3,1:2",
      option, text);
}

Machine this_machine() { return {.cores = usable_cores(), .gpus = machine::visible_gpus()}; }

int worker_count(const std::string& nproc_per_node, const Machine& machine) {
  if (nproc_per_node == "cpu") return machine.cores;
  if (nproc_per_node == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (nproc_per_node == "gpu") {
    if (machine.gpus > 0) return machine.gpus;
    throw ArgumentError(
        "nproc-per-node is \"gpu\", but no GPU is visible: /dev has no nvidia0, nvidia1, ..., or "
        "CUDA_VISIBLE_DEVICES hides them. Use a number, \"cpu\" or \"auto\"");
  }
  const auto count = parse_number<int>(nproc_per_node);
  if (count && *count > 0) return *count;
  throw_error<ArgumentError>(
      "nproc-per-node is \"{}\": use a whole number above 0, \"gpu\", \"cpu\" or \"auto\"", nproc_per_node);
}

namespace {

// 0 if there is no such signal.
int signal_number(std::string name) {
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int number = 1; number < SIGRTMIN; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && name == known) return number;
  }
  return 0;
}

}  // namespace

bool is_user_signal(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

bool is_warning(int signal, const std::set<int>& stop_signals) {
  return is_user_signal(signal) && !stop_signals.contains(signal);
}

std::set<int> forwarded_signals(std::set<int> stop_signals) {
  stop_signals.insert({SIGUSR1, SIGUSR2});
  return stop_signals;
}

std::set<int> parse_signals(const std::string& text) {
  std::set<int> signals;
  for (auto name : split(text, ',')) {
    std::erase(name, ' ');
    const int number = signal_number(name);
    if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
      throw_error<ArgumentError>(
          "signals-to-handle: \"{}\" is not a signal that a program can handle; use names as in "
          "SIGTERM,SIGUSR1",
          name);
    }
    signals.insert(number);
  }
  return signals;
}

}  // namespace lockstep::launch
