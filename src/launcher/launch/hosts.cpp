// SPDX-License-Identifier: BSD-3-Clause
#include "launch/hosts.h"

#include <csignal>
#include <map>
#include <memory>
#include <sys/socket.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "launch/guard.h"
#include "launch/launch.h"
#include "launch/launch_view.h"
#include "launch/log_multiplexer.h"
#include "launch/messages.h"
#include "launch/options.h"
#include "launch/process_tree.h"
#include "launch/rank_supervisor.h"
#include "launch/worker_group.h"
#include "machine/command.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr int kShellFailed = 255;  // ssh(1): its own exit code, which may also be the command's
constexpr milliseconds kEndTogetherLimit{2'000};
// Launchers need a moment after the grace period of their ranks.
constexpr milliseconds kMoreGrace{3'000};

struct SocketPair {
  UniqueFd ours{};
  UniqueFd theirs{};
};

// The stdin of a remote shell. Unlike a pipe, LineConnection can use it.
SocketPair make_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw LaunchError("the remote shells could not be started: socketpair: " + errno_text(errno));
  }
  return {.ours = UniqueFd(ends[0]), .theirs = UniqueFd(ends[1])};
}

// Note [Launchers of several hosts]
//
// HostsSupervisor adds to RankSupervisor (note [Supervision of ranks]) that the supervised processes are
// remote shells: `rank` is the index of a host, a signal is a line on its stdin, and only begin_kill() acts
// on the shells themselves.
class HostsSupervisor : private RankSupervisor {
 public:
  HostsSupervisor(const HostsOptions& options, const std::vector<std::string>& orders,
                  const std::string& shell, int parent)
      : RankSupervisor({.grace_period = options.grace_period + kMoreGrace, .confirm = kEndTogetherLimit},
                       forwarded_signals(options.stop_signals), parent),
        options_(options),
        orders_(orders),
        shell_(shell) {}

  int run();

 private:
  std::optional<RankExit> take_exit(const RankExit& child) override;
  bool has_ranks() const override { return !alive_.empty(); }
  FailureReport report(const RankExit& exit) override;
  void signal_ranks(int signal) override;
  milliseconds leftover_limit() const override { return milliseconds(0); }
  void on_signal(int signal) override;
  void on_grace_period_over() override;

  void start();
  void loop();
  void send_signs_of_life();
  void print_failure();
  // Whether the launcher of that host has run, so that an exit code may be a rank's.
  bool has_begun(int host) const { return greeted_.contains(host); }
  std::string advice_for(const RankExit& exit) const;

  const HostsOptions& options_;
  const std::vector<std::string>& orders_;  // encoded
  const std::string& shell_;
  LogMultiplexer logs_;
  std::map<int, LineConnection> stdins_;  // by the index of the host
  std::map<pid_t, int> alive_;
  std::set<int> greeted_;  // hosts that have sent kNodeGreeting
  Deadline sign_of_life_at_{kAliveInterval};
  int stop_signal_ = 0;
};

int HostsSupervisor::run() {
  try {
    start();
    loop();
  } catch (const std::exception&) {
    kill_descendants();
    throw;
  }
  kill_descendants();
  if (parent_died()) return 128 + SIGKILL;
  logs_.finish();
  print_failure();
  flush(logs_);
  if (failures().interrupted()) return kExitInterrupted;
  if (stop_signal_ != 0 || !failures().any()) return stop_signal_ != 0 ? 128 + stop_signal_ : 0;
  return exit_code(failures().first());
}

void HostsSupervisor::start() {
  begin_run();
  for (std::size_t i = 0; i < options_.hosts.size(); ++i) {
    const int index = static_cast<int>(i);
    auto stdin_of_shell = make_sockets();
    auto words = options_.shell;
    words.push_back(options_.hosts[i].name);
    words.push_back(machine::quoted(options_.program) + " node");
    auto process = start_rank({.file = shell_, .arguments = words, .in = stdin_of_shell.theirs.get()});
    alive_.emplace(process.pid, index);
    const auto takes = [this, index](std::string_view line) {
      return line == kNodeGreeting && greeted_.insert(index).second;
    };
    logs_.add_rank(index, {.pipe = std::move(process.out), .takes = takes}, {.pipe = std::move(process.err)});
    stdins_.emplace(index, LineConnection(std::move(stdin_of_shell.ours)));
    stdins_.at(index).send(orders_[i]);
  }
}

void HostsSupervisor::loop() {
  while (phase() != Phase::idle) {
    std::vector<pollfd> events;
    logs_.watch(events);
    for (const auto& [index, in] : stdins_) {
      if (in.broken().empty()) events.push_back({.fd = in.fd(), .events = in.events(), .revents = 0});
    }
    if (!wait(events, sign_of_life_at_.remaining() + milliseconds(1))) return;
    for (const auto& event : events) logs_.handle(event);
    for (auto& [index, in] : stdins_) in.advance();
    handle_signals();
    advance();
    send_signs_of_life();
    // Without a reader of the output.
    if (logs_.stdout_error() == EPIPE && stop_signal_ == 0) on_signal(SIGPIPE);
  }
}

void HostsSupervisor::send_signs_of_life() {
  if (!sign_of_life_at_.expired()) return;
  sign_of_life_at_ = Deadline(kAliveInterval);
  for (auto& [index, in] : stdins_) in.send("");
}

std::optional<RankExit> HostsSupervisor::take_exit(const RankExit& child) {
  const auto found = alive_.extract(child.pid);
  if (found.empty()) return std::nullopt;
  stdins_.erase(found.mapped());
  auto exit = child;
  exit.rank = exit.local_rank = found.mapped();
  exit.interrupted = exit.signal == 0 && exit.code == kExitInterrupted && has_begun(exit.rank);
  return exit;
}

// A launcher fails when ranks of any host fail.
FailureReport HostsSupervisor::report(const RankExit& exit) {
  logs_.drain(exit.rank);
  const bool shell_failed = exit.signal != 0 || (exit.code == kShellFailed && !has_begun(exit.rank));
  return {.first = exit, .lost_peer = !shell_failed};
}

void HostsSupervisor::signal_ranks(int signal) {
  for (auto& [index, in] : stdins_) in.send(std::to_string(signal));
}

void HostsSupervisor::on_signal(int signal) {
  if (is_warning(signal, options_.stop_signals)) return signal_ranks(signal);
  const bool first = stop_signal_ == 0;
  if (first) stop_signal_ = signal;
  // Launchers do not know SIGPIPE as a stop signal.
  const int sent = signal == SIGPIPE ? SIGTERM : signal;
  if (first && !is_stopping()) {
    begin_stop(sent);
  } else {
    signal_ranks(sent);
  }
}

void HostsSupervisor::on_grace_period_over() {
  for (const auto& [pid, index] : alive_) {
    logs_.print(fmt::format("host {} does not end; its connection is cut, which kills its ranks",
                            options_.hosts.at(static_cast<std::size_t>(index)).name));
  }
}

std::string HostsSupervisor::advice_for(const RankExit& exit) const {
  if (exit.signal != 0) return "";
  if (exit.code == kShellFailed) {
    const auto& shell = options_.shell.front();
    return has_begun(exit.rank) ? fmt::format(": that of a rank, or {} lost the connection", shell)
                                : fmt::format(": {} could not connect, or lost the connection", shell);
  }
  if (exit.code == ProgramError::kNotFound && !has_begun(exit.rank)) {
    return fmt::format("; if that host has no {}, set --lockstep", options_.program);
  }
  return "";
}

void HostsSupervisor::print_failure() {
  if (!failures().any() || stop_signal_ != 0) return;
  const auto& first = failures().first().first;
  logs_.print(fmt::format("host {}: its launcher {}{}",
                          options_.hosts.at(static_cast<std::size_t>(first.rank)).name, describe(first),
                          advice_for(first)));
}

HostEntry parse_entry(const std::string& text) {
  HostEntry entry{.name = text};
  const auto colon = text.rfind(':');
  const bool bracketed = text.find('[') != std::string::npos;
  const bool has_ranks = colon != std::string::npos && (!bracketed || colon > text.rfind(']')) &&
                         (bracketed || text.find(':') == colon);
  if (has_ranks) {
    entry.name = text.substr(0, colon);
    entry.ranks = parse_number<int>(std::string_view(text).substr(colon + 1));
    if (!entry.ranks || *entry.ranks < 1) {
      throw_error<ArgumentError>("--hosts: {}: the number of ranks must be 1 or more", text);
    }
  }
  std::erase_if(entry.name, [](char c) { return c == '[' || c == ']'; });
  if (entry.name.empty() || entry.name.starts_with('-')) {
    throw_error<ArgumentError>("--hosts: \"{}\" names no host; use HOST or HOST:RANKS, separated by commas",
                               text);
  }
  return entry;
}

}  // namespace

std::vector<HostEntry> parse_hosts(const std::string& text) {
  std::vector<HostEntry> hosts;
  std::set<std::string> seen;
  for (const auto& part : split(text, ',')) {
    hosts.push_back(parse_entry(part));
    const auto address = machine::address_part(hosts.back().name);
    if (!seen.insert(address).second) {
      throw_error<ArgumentError>(
          "--hosts: {} is listed twice; list a host once, with its number of ranks, as in {}:4", address,
          address);
    }
  }
  if (hosts.empty()) throw ArgumentError("--hosts is empty: use HOST or HOST:RANKS, separated by commas");
  return hosts;
}

int launch_on_hosts(const HostsOptions& options) {
  const auto shell = find_program(options.shell.front(), Env());
  std::vector<std::string> orders;
  for (const auto& order : options.orders) orders.push_back(encode(order));
  const auto view = options.view ? std::make_unique<LaunchView>(*options.view) : nullptr;
  const auto body = [&](int parent) {
    if (view) view->close();
    ::signal(SIGPIPE, SIG_IGN);
    return HostsSupervisor(options, orders, shell, parent).run();
  };
  GuardOptions guard{.signals = forwarded_signals(options.stop_signals)};
  if (view) guard.beside.push_back({"the view of the ranks", [&](int stop) { view->serve(stop); }});
  const auto exit = run_guarded(body, guard);
  if (exit.signal != 0) log(LogLevel::error, describe(exit));
  return exit.code;
}

}  // namespace lockstep::launch
