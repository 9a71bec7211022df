// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/base/reserved_port.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/launch/supervisor.h>

#include "launch/addresses.h"
#include "launch/attempt.h"
#include "launch/attempt_failures.h"
#include "launch/coordinator_server.h"
#include "launch/ended_children.h"
#include "launch/local_link.h"
#include "launch/process_tree.h"
#include "launch/signals.h"
#include "launch/tcp_link.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// How often processes are looked for that appeared while their family was being killed.
constexpr milliseconds kKillInterval{5};
// A process may be stuck in the kernel (a dead network file system); nobody can kill it then.
constexpr milliseconds kKillLimit{10'000};
// A rank that lost its peer may end before the peer itself has, which then is the first cause.
constexpr milliseconds kCulpritPatience{300};
constexpr milliseconds kHangupPatience{1'000};
// What ranks that are gone have left behind serves nobody; the grace period is the ranks'.
constexpr milliseconds kLeftoverPatience{1'000};
constexpr milliseconds kSayWaitingAfter{10'000};

UniqueFd open_signalfd(const std::set<int>& stop_signals) {
  const sigset_t signals = watched_signals(stop_signals);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw LaunchError("the launch could not be started: signalfd: " + errno_text(errno));
  return fd;
}

std::string in_seconds(milliseconds span) {
  return fmt::format("{:g} s", static_cast<double>(span.count()) / 1000);
}

bool can_read(const pollfd& event) { return event.revents != 0; }

std::unique_ptr<NodeLink> make_link(const LaunchOptions& options, bool is_meeting_point) {
  NodeInfo info{.ranks = options.nproc_per_node,
                .role = options.role,
                .host = host_name(),
                .is_meeting_point = is_meeting_point};
  if (!options.nodes) {
    return std::make_unique<LocalLink>(coordination_options(options), info, options.master_addr);
  }
  info.node_rank = options.nodes->node_rank;
  return std::make_unique<TcpLink>(*options.nodes, Hello{.run_id = options.run_id, .node = std::move(info)},
                                   options.local_addr);
}

ReservedPort reserve_port(const LaunchOptions& options) {
  if (options.nodes || !options.master_port) return {};
  try {
    return ReservedPort(*options.master_port);
  } catch (const LaunchError& error) {
    throw LaunchError(
        fmt::format("master-port: {}; choose another, or leave it out to get a free one", error.what()));
  }
}

// One launch: a poll loop in one thread over the signals, the launcher's life, the ranks' output and the way
// to the other nodes.
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const std::string& file, bool is_meeting_point, int launcher)
      : options_(options),
        file_(file),
        launcher_(launcher),
        signals_(open_signalfd(options.stop_signals)),
        folder_(options.output, options.run_id),
        link_(make_link(options, is_meeting_point)) {}

  int run();

 private:
  enum class Phase { idle, running, finding_culprit, stopping, killing };

  void loop();
  void step();
  milliseconds patience() const;
  void read_signals();
  void on_stop_signal(int signal);
  void reap(pid_t first);
  void on_rank_exit(const RankExit& exit);
  void on_culprit_known();
  void on_lost_output();
  void begin_stop(int signal);
  void stop_leftovers();
  void advance_phase();
  void enter_killing();
  void on_all_gone();

  void read_link();
  std::optional<ToNode> receive();
  void on(const Welcome& /*welcome*/) {}
  void on(const Reserve& reserve);
  void on(const Start& start);
  void on(const Stop& stop);
  void on(const End& end);
  [[noreturn]] void on(const Refused& refused);
  void say_waiting();

  void report();
  void write_error(const FailureReport& failure);
  void flush();
  int result() const;
  bool over() const { return phase_ == Phase::idle && (outcome_ || stop_signal_ != 0); }

  const LaunchOptions& options_;
  const std::string& file_;
  const int launcher_;
  const UniqueFd signals_;
  LogMultiplexer logs_;
  LogFolder folder_;
  std::unique_ptr<NodeLink> link_;
  std::optional<ReservedPort> port_;
  std::optional<Attempt> attempt_;
  Phase phase_ = Phase::idle;
  std::optional<Deadline> deadline_;  // of the phase
  Deadline waiting_{kSayWaitingAfter};
  bool said_waiting_ = false;
  bool leftovers_told_ = false;
  bool launcher_gone_ = false;
  bool output_lost_ = false;
  bool file_loss_told_ = false;
  bool stop_asked_ = false;  // by a Stop, which waits for its answer
  int stop_signal_ = 0;
  std::optional<End> outcome_;
  AttemptFailures failures_;
  int sent_signal_ = 0;  // the last one, to ranks that should stop
};

int Supervisor::run() {
  try {
    loop();
  } catch (const std::exception& error) {
    link_->send(Leaving{error.what()});
    write_error({.reason = error.what(), .host = host_name()});
    kill_descendants(Deadline(kKillLimit));
    logs_.finish();
    flush();
    throw;
  }
  if (launcher_gone_) {
    kill_descendants(Deadline(kKillLimit));
    return 128 + SIGKILL;
  }
  report();
  flush();
  return result();
}

void Supervisor::loop() {
  if (!options_.output.error_file.empty()) remove_error_file(options_.output.error_file);
  read_link();
  while (!over() && !launcher_gone_) step();
}

void Supervisor::step() {
  std::vector<pollfd> events{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                             {.fd = launcher_, .events = POLLIN, .revents = 0}};
  logs_.watch(events);
  link_->watch(events);
  if (::poll(events.data(), events.size(), static_cast<int>(patience().count())) < 0) {
    if (errno == EINTR) return;
    throw LaunchError("poll: " + errno_text(errno));
  }
  if (can_read(events[1])) {
    launcher_gone_ = true;
    return;
  }
  std::for_each(events.begin() + 2, events.end(), [&](const pollfd& event) { logs_.handle(event); });
  if (can_read(events[0])) read_signals();
  on_lost_output();
  advance_phase();
  link_->advance();
  read_link();
  say_waiting();
}

milliseconds Supervisor::patience() const {
  constexpr milliseconds forever(-1);
  milliseconds least = forever;
  const auto consider = [&](milliseconds span) { least = least == forever ? span : std::min(least, span); };
  if (phase_ == Phase::killing) return kKillInterval;
  if (phase_ == Phase::stopping || phase_ == Phase::finding_culprit) {
    consider(deadline_->remaining() + milliseconds(1));
  }
  if (phase_ == Phase::idle && !said_waiting_) consider(waiting_.remaining() + milliseconds(1));
  if (const auto link = link_->patience()) consider(*link);
  return std::min<milliseconds>(least, std::chrono::hours(1));
}

void Supervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) {
      reap(static_cast<pid_t>(info.ssi_pid));
    } else {
      on_stop_signal(static_cast<int>(info.ssi_signo));
    }
  }
}

void Supervisor::on_stop_signal(int signal) {
  const bool impatient = signal == SIGINT || signal == SIGQUIT;
  if (phase_ == Phase::stopping && impatient && stop_signal_ != 0) {
    logs_.say(fmt::format("{} again: killing all ranks", signal_name(signal)));
    enter_killing();
  }
  if (stop_signal_ != 0) return;
  stop_signal_ = signal;
  const bool stopping_already = phase_ == Phase::stopping || phase_ == Phase::killing;
  if (stopping_already) {
    logs_.say(fmt::format("{}: the ranks are not started again", signal_name(signal)));
  } else {
    logs_.say(fmt::format("{}: stopping all ranks (killed after {}{})", signal_name(signal),
                          in_seconds(options_.grace_period), impatient ? ", or at a second Ctrl-C" : ""));
  }
  link_->send(Leaving{fmt::format("its launcher got {}", signal_name(signal))});
  begin_stop(signal);
}

void Supervisor::reap(pid_t first) {
  const auto ended = reap_ended_children(first);
  std::vector<RankExit> exits;
  for (const auto& child : ended.exits) {
    const auto exit = attempt_ ? attempt_->end_of(child) : std::nullopt;
    if (exit) exits.push_back(*exit);
  }
  for (const auto& exit : exits) on_rank_exit(exit);
  if (!attempt_ || !attempt_->alive().empty()) return;
  // Orphans come to this process, so without children there are no descendants either.
  if (ended.any_left) {
    stop_leftovers();
  } else {
    on_all_gone();
  }
}

void Supervisor::on_rank_exit(const RankExit& exit) {
  if (!exit.failed()) return;
  logs_.drain(exit.rank);
  if (exit.signal != 0 && exit.signal == sent_signal_) {
    failures_.add_stopped(exit.rank);
  } else if (phase_ == Phase::stopping || phase_ == Phase::killing) {
    failures_.add_later(exit);
  } else {
    failures_.add(attempt_->report(exit));
    const bool wait = failures_.is_doubted() && !attempt_->alive().empty();
    if (phase_ == Phase::running || !wait) deadline_.emplace(wait ? kCulpritPatience : milliseconds(0));
    phase_ = Phase::finding_culprit;
  }
}

void Supervisor::on_culprit_known() {
  begin_stop(SIGTERM);
  link_->send(Failed{.attempt = attempt_->place().attempt,
                     .consequence = options_.nodes && failures_.is_doubted(),
                     .report = failures_.first()});
}

void Supervisor::on_lost_output() {
  if (logs_.file_error() != 0 && !file_loss_told_) {
    file_loss_told_ = true;
    logs_.say(fmt::format("warning: some of what the ranks write is not in their log files: {}",
                          errno_text(logs_.file_error())));
  }
  const int error = logs_.stdout_error();
  if (error == 0 || output_lost_) return;
  output_lost_ = true;
  if (error != EPIPE) {
    logs_.say(
        fmt::format("warning: what the ranks write to stdout is lost from here on: {}", errno_text(error)));
    return;
  }
  logs_.say("nobody reads stdout any more: stopping all ranks");
  if (stop_signal_ == 0) {
    stop_signal_ = SIGPIPE;
    link_->send(Leaving{"nobody reads its output any more"});
  }
  begin_stop(SIGTERM);
}

void Supervisor::begin_stop(int signal) {
  if (phase_ != Phase::running && phase_ != Phase::finding_culprit) return;
  phase_ = Phase::stopping;
  sent_signal_ = signal;
  // Whoever closes a terminal is not there to wait.
  deadline_.emplace(signal == SIGHUP ? std::min(options_.grace_period, kHangupPatience)
                                     : options_.grace_period);
  attempt_->signal_ranks(signal);
}

void Supervisor::stop_leftovers() {
  if (leftovers_told_) return;
  leftovers_told_ = true;
  if (phase_ == Phase::finding_culprit) on_culprit_known();
  begin_stop(SIGTERM);
  signal_descendants(SIGTERM);
  if (phase_ == Phase::stopping && failures_.any()) {
    deadline_.emplace(std::min(deadline_->remaining(), kLeftoverPatience));
  }
}

void Supervisor::advance_phase() {
  if (phase_ == Phase::finding_culprit && deadline_->expired()) on_culprit_known();
  if (phase_ == Phase::stopping && deadline_->expired()) {
    const auto ranks = attempt_->alive_ranks();
    logs_.say(fmt::format("still running after {}, so killed: {}", in_seconds(options_.grace_period),
                          ranks.empty() ? "processes that the ranks left behind"
                                        : fmt::format("rank {}", fmt::join(ranks, ", "))));
    enter_killing();
  }
  if (phase_ != Phase::killing) return;
  if (deadline_->expired()) {
    throw LaunchError(fmt::format("these processes are left, because even SIGKILL does not end them: {}",
                                  fmt::join(descendants(), ", ")));
  }
  signal_descendants(SIGKILL);
}

void Supervisor::enter_killing() {
  phase_ = Phase::killing;
  sent_signal_ = SIGKILL;
  deadline_.emplace(kKillLimit);
}

// The attempt is over on this node.
void Supervisor::on_all_gone() {
  if (phase_ == Phase::idle) return;
  if (phase_ == Phase::finding_culprit) on_culprit_known();
  logs_.finish();
  phase_ = Phase::idle;
  waiting_ = Deadline(kSayWaitingAfter);
  said_waiting_ = false;
  port_.reset();
  const int number = attempt_->place().attempt;
  if (stop_asked_) {
    stop_asked_ = false;
    link_->send(Stopped{number});
  } else if (!failures_.any() && stop_signal_ == 0) {
    link_->send(Finished{number});
  }
}

void Supervisor::read_link() {
  while (stop_signal_ == 0) {
    const auto message = receive();
    if (!message) return;
    std::visit([&](const auto& said) { on(said); }, *message);
  }
}

// Without the other nodes the ranks here cannot go on.
std::optional<ToNode> Supervisor::receive() {
  try {
    return link_->receive();
  } catch (const LaunchError& error) {
    if (outcome_) return std::nullopt;
    if (phase_ == Phase::idle) throw;
    return End{FailureReport{.reason = error.what(), .host = host_name()}};
  }
}

void Supervisor::on(const Reserve& /*reserve*/) {
  port_ = reserve_port(options_);
  link_->send(Reserved{.address = link_->address(), .port = port_->port()});
}

void Supervisor::on(const Start& start) {
  failures_ = {};
  sent_signal_ = 0;
  leftovers_told_ = false;
  phase_ = Phase::running;
  attempt_.emplace(options_, file_, start.place, folder_, logs_);
}

void Supervisor::on(const Stop& stop) {
  const bool ours = failures_.any() && attempt_ && attempt_->place().attempt == stop.attempt;
  const bool others_run = attempt_ && !attempt_->alive().empty();
  const char* others = !others_run ? "" : ours ? "; stopping the other ranks" : "; stopping all ranks";
  logs_.say(stop.notice + others);
  begin_stop(SIGTERM);
  if (phase_ == Phase::idle) {
    link_->send(Stopped{stop.attempt});
  } else {
    stop_asked_ = true;
  }
}

void Supervisor::on(const End& end) {
  outcome_ = end;
  begin_stop(SIGTERM);
}

void Supervisor::on(const Refused& refused) {
  throw LaunchError(fmt::format("the launcher at {} does not take this node: {}",
                                to_text(options_.nodes->endpoint), refused.reason));
}

void Supervisor::say_waiting() {
  if (phase_ != Phase::idle || said_waiting_ || !waiting_.expired() || over()) return;
  said_waiting_ = true;
  logs_.say(fmt::format("still waiting for the other nodes at {}", to_text(options_.nodes->endpoint)));
}

void Supervisor::report() {
  const auto failure = failures_.summary(outcome_ ? outcome_->failure : std::nullopt);
  if (!failure) return;
  if (!folder_.path().empty()) logs_.say(fmt::format("log files: {}", folder_.path().string()));
  for (const auto& line : report_lines(*failure)) logs_.say(line);
  write_error(*failure);
}

void Supervisor::write_error(const FailureReport& failure) {
  if (options_.output.error_file.empty()) return;
  try {
    write_error_file(options_.output.error_file, report_json(failure));
  } catch (const std::exception& error) {
    logs_.say(fmt::format("warning: the error file was not written: {}", error.what()));
  }
}

// Waits for a slow reader as any program does, so with no deadline, but not against a user who wants it to
// end.
void Supervisor::flush() {
  while (logs_.pending()) {
    std::vector<pollfd> events{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                               {.fd = launcher_, .events = POLLIN, .revents = 0}};
    logs_.watch(events);
    if (::poll(events.data(), events.size(), -1) < 0) continue;
    if (can_read(events[1])) return;
    for (const auto& event : events) logs_.handle(event);
    signalfd_siginfo info{};
    if (can_read(events[0]) && ::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) return;
    }
  }
}

int Supervisor::result() const {
  const auto failure = failures_.summary(outcome_ ? outcome_->failure : std::nullopt);
  if (failure) return exit_code(*failure);
  return stop_signal_ != 0 ? 128 + stop_signal_ : 0;
}

}  // namespace

int supervise(const LaunchOptions& options, const std::string& file, bool is_meeting_point, int launcher) {
  // A write whose reader has gone shall fail, not kill.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, nullptr);
  return Supervisor(options, file, is_meeting_point, launcher).run();
}

}  // namespace lockstep::launch
