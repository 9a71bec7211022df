// SPDX-License-Identifier: BSD-3-Clause
#include "launch/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "base/throw_error.h"
#include "launch/launch.h"
#include "launch/launch_limits.h"
#include "launch/process_tree.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// SLURM signals the launcher and its guard, which also gets what the launcher forwards.
constexpr milliseconds kSameSignal{1'000};
constexpr milliseconds kLogWaitingAfter{10'000};

std::string in_seconds(milliseconds span) {
  return fmt::format("{:g} s", static_cast<double>(span.count()) / 1000);
}

}  // namespace

NodeSupervisor::NodeSupervisor(const LaunchOptions& options, const std::string& file, bool is_host,
                               int parent)
    : RankSupervisor({.grace_period = options.grace_period, .confirm = kConfirmLimit},
                     forwarded_signals(options.stop_signals), parent),
      options_(options),
      file_(file),
      is_host_(is_host),
      log_folder_(options.output, options.run_id),
      client_(make_client(options, is_host)),
      log_waiting_at_(kLogWaitingAfter) {
  if (options.has_host_control) control_.emplace(STDIN_FILENO);
}

int NodeSupervisor::run() {
  try {
    loop();
  } catch (const std::exception& error) {
    client_->send(Leaving{error.what()});
    const FailureReport failure{.reason = error.what(), .host = host_name()};
    account({.failure = failure});
    write_error(failure);
    kill_descendants();
    logs_.finish();
    flush(logs_, control_ ? &*control_ : nullptr);
    throw;
  }
  if (parent_died()) {
    kill_descendants();
    return 128 + SIGKILL;
  }
  print_report();
  flush(logs_, control_ ? &*control_ : nullptr);
  return result();
}

void NodeSupervisor::loop() {
  if (!options_.output.error_file.empty()) remove_error_file(options_.output.error_file);
  handle_messages();
  while (!over()) {
    std::vector<pollfd> events;
    logs_.watch(events);
    client_->watch(events);
    if (store_) store_->watch(events);
    if (control_) control_->watch(events);
    if (!wait(events, poll_timeout())) return;
    for (const auto& event : events) logs_.handle(event);
    handle_signals();
    handle_control();
    check_output();
    advance();
    client_->advance();
    if (store_) store_->advance(events);
    handle_messages();
    check_coordinator();
    log_waiting();
  }
}

// The launcher that coordinates the nodes watches its own node by other means.
void NodeSupervisor::expect_answer() {
  silences_ = 0;
  if (silence_limit_ && !is_host_) answer_due_.emplace(*silence_limit_);
}

void NodeSupervisor::check_coordinator() {
  if (stop_signal_ != 0) answer_due_.reset();
  if (!answer_due_ || !answer_due_->expired()) return;
  if (++silences_ < kSilences) {
    answer_due_.emplace(*silence_limit_);
    return;
  }
  const auto reason = fmt::format(
      "the launcher at {}, which coordinates the nodes, did not answer for {}: its processes may be frozen",
      to_text(options_.nodes->endpoint), in_seconds(kSilences * *silence_limit_));
  on(end_without_coordinator(reason));
}

// A failure of a rank here, which counts as the first one, may be the consequence.
End NodeSupervisor::end_without_coordinator(const std::string& reason) {
  if (!failures().any()) return {FailureReport{.reason = reason, .host = host_name()}};
  logs_.print(reason);
  return {};
}

milliseconds NodeSupervisor::poll_timeout() const {
  milliseconds limit = client_->poll_timeout().value_or(milliseconds(-1));
  if (phase() == Phase::idle && !waiting_logged_) {
    limit = shorter(limit, log_waiting_at_.remaining() + milliseconds(1));
  }
  if (answer_due_) limit = shorter(limit, answer_due_->remaining() + milliseconds(1));
  if (store_) limit = shorter(limit, store_->poll_timeout());
  return control_ ? shorter(limit, control_->poll_timeout()) : limit;
}

void NodeSupervisor::handle_control() {
  if (!control_) return;
  while (const auto signal = control_->next_signal()) {
    if (!control_->lost().empty()) logs_.print(fmt::format("{}: this node ends", control_->lost()));
    on_signal(*signal);
  }
}

void NodeSupervisor::warn_ranks(int signal) {
  const bool have_ranks = has_ranks();
  logs_.print(fmt::format("{}: {}", signal_name(signal),
                          have_ranks ? "forwarded to the ranks" : "not forwarded: no rank runs"));
  if (have_ranks) workers_->warn_ranks(signal);
}

bool NodeSupervisor::is_second(int signal) const {
  if (stop_signal_ == 0) return false;
  return signal == SIGINT || signal == SIGQUIT || (signal == stop_signal_ && second_signal_from_->expired());
}

void NodeSupervisor::on_signal(int signal) {
  if (is_warning(signal, options_.stop_signals)) return warn_ranks(signal);
  if (phase() == Phase::stopping && is_second(signal)) {
    logs_.print(fmt::format("{} again: killing all ranks", signal_name(signal)));
    begin_kill();
  }
  if (stop_signal_ != 0) return;
  stop_signal_ = signal;
  second_signal_from_.emplace(kSameSignal);
  account({.signal = signal});
  if (is_stopping()) {
    logs_.print(fmt::format("{}: the ranks will not be restarted", signal_name(signal)));
  } else {
    logs_.print(fmt::format("{}: stopping all ranks (SIGKILL after {}, or at a second {})",
                            signal_name(signal), in_seconds(options_.grace_period),
                            signal == SIGINT ? "Ctrl-C" : signal_name(signal)));
  }
  client_->send(Leaving{fmt::format("its launcher received {}", signal_name(signal)), signal});
  begin_stop(signal);
}

void NodeSupervisor::account(AccountEntry entry) const {
  if (workers_) entry.restarts = workers_->assignment().restarts;
  if (options_.notes != nullptr) options_.notes->restarts = entry.restarts;
  write_account(options_.account, std::move(entry));
}

std::optional<RankExit> NodeSupervisor::take_exit(const RankExit& child) {
  if (workers_ && workers_->take_spare(child.pid)) {
    if (!is_stopping())
      logs_.print(fmt::format("a spare, pid {}, {}; it is not started again", child.pid, describe(child)));
    return std::nullopt;
  }
  auto exit = workers_ ? workers_->take_exit(child, is_stopping()) : std::nullopt;
  if (exit && exit->failed() && options_.notes != nullptr)
    exit->killed_for = options_.notes->kill_reason(child.pid);
  if (exit) account({.exit = exit, .was_stopped = is_stopping()});
  return exit;
}

FailureReport NodeSupervisor::report(const RankExit& exit) {
  logs_.drain(exit.rank);
  return workers_->report(exit);
}

void NodeSupervisor::on_first_failure() {
  account({.failure = failures().first()});
  client_->send(Failed{.attempt = workers_->assignment().attempt,
                       .consequence = options_.nodes && failures().may_be_consequence(),
                       .report = failures().first()});
  expect_answer();
}

// The grace period is for ranks: after a failure nothing needs what they left behind.
milliseconds NodeSupervisor::leftover_limit() const {
  return failures().any() ? std::min(kLeftoverLimit, options_.grace_period) : options_.grace_period;
}

void NodeSupervisor::on_grace_period_over() {
  const auto ranks = workers_->alive_ranks();
  logs_.print(fmt::format(
      "still running after {} (--grace-period); killed: {}", in_seconds(options_.grace_period),
      ranks.empty() ? "processes that the ranks started" : fmt::format("rank {}", fmt::join(ranks, ", "))));
}

void NodeSupervisor::on_all_gone() {
  logs_.finish();
  log_waiting_at_ = Deadline(kLogWaitingAfter);
  waiting_logged_ = false;
  port_.reset();
  const int attempt = workers_->assignment().attempt;
  if (std::exchange(stop_requested_, false)) {
    client_->send(Stopped{attempt});
  } else if (!failures().any() && stop_signal_ == 0) {
    client_->send(Finished{attempt});
  }
  expect_answer();
}

void NodeSupervisor::check_output() {
  if (logs_.file_error() != 0 && !std::exchange(file_error_logged_, true)) {
    logs_.print(fmt::format("warning: the log files of the ranks are incomplete: {}",
                            errno_text(logs_.file_error())));
  }
  const int error = logs_.stdout_error();
  if (error == 0 || std::exchange(stdout_error_logged_, true)) return;
  if (error != EPIPE) {
    logs_.print(fmt::format("warning: stdout of the ranks is lost from here on: {}", errno_text(error)));
    return;
  }
  logs_.print("stdout has no reader any more: stopping all ranks");
  if (stop_signal_ == 0) {
    stop_signal_ = SIGPIPE;
    client_->send(Leaving{"its output has no reader any more"});
  }
  begin_stop(SIGTERM);
}

void NodeSupervisor::handle_messages() {
  while (stop_signal_ == 0) {
    const auto message = receive();
    if (!message) return;
    if (answer_due_) expect_answer();
    std::visit([&](const auto& content) { on(content); }, *message);
  }
}

// The ranks of this node cannot continue without the other nodes.
std::optional<ToNode> NodeSupervisor::receive() {
  try {
    auto message = client_->receive();
    if (message && std::holds_alternative<End>(*message)) end_is_known_to_all_ = true;
    return message;
  } catch (const LaunchError& error) {
    if (end_) return std::nullopt;
    if (phase() == Phase::idle) throw;
    return end_without_coordinator(error.what());
  }
}

void NodeSupervisor::on(const Welcome& welcome) {
  constexpr std::int64_t most = 24 * 3'600'000;  // no peer makes a Deadline overflow
  silence_limit_ = milliseconds(std::clamp<std::int64_t>(welcome.silence_limit_ms, 1, most));
  expect_answer();
}

void NodeSupervisor::on(const Reserve& /*reserve*/) {
  port_ = reserve_port(options_);
  Reserved reserved{.address = client_->address(), .port = port_->port()};
  if (options_.nodes && options_.on_loss != OnLoss::restart) {
    store_.emplace(options_.nodes->silence_limit);
    reserved.store_port = store_->port();
    reserved.store_token = store_->token();
  }
  client_->send(reserved);
}

void NodeSupervisor::on(const Start& start) {
  answer_due_.reset();
  stopped_by_signal_ = false;
  if (store_) RunStoreServer::check_descriptors(start.assignment.world_size);
  begin_run();
  replacements_.clear();
  workers_.emplace(options_, file_, start.assignment, log_folder_, logs_, [this] { serve_store(); });
  AccountEntry entry;
  for (const auto& [pid, local_rank] : workers_->alive())
    entry.started[start.assignment.first_rank + local_rank] = pid;
  account(std::move(entry));
}

void NodeSupervisor::on(const Stop& stop) {
  answer_due_.reset();
  const bool ours = failures().any() && workers_ && workers_->assignment().attempt == stop.attempt;
  const bool others_run = workers_ && !workers_->alive().empty();
  const char* others = !others_run ? "" : ours ? "; stopping the other ranks" : "; stopping all ranks";
  logs_.print(stop.notice + others);
  stopped_by_signal_ = stop.signal != 0;
  begin_stop(stop.signal != 0 ? stop.signal : SIGTERM);
  if (phase() == Phase::idle) {
    client_->send(Stopped{stop.attempt});
    expect_answer();
  } else {
    stop_requested_ = true;
  }
}

void NodeSupervisor::on(const End& end) {
  answer_due_.reset();
  end_ = end;
  if (end.signal != 0) stopped_by_signal_ = true;
  begin_stop(end.signal != 0 ? end.signal : SIGTERM);
}

void NodeSupervisor::on(const Refused& refused) {
  throw_error<LaunchError>("the launcher at {} refused this node: {}", to_text(options_.nodes->endpoint),
                           refused.reason);
}

// The launcher process answers. If it is frozen, the pipe may be full: nobody waits for it.
void NodeSupervisor::on(const Look& look) const {
  if (options_.looks < 0) return;
  [[maybe_unused]] const auto written = ::write(options_.looks, &look, sizeof(look));
}

void NodeSupervisor::log_waiting() {
  if (phase() != Phase::idle || waiting_logged_ || !log_waiting_at_.expired() || over()) return;
  waiting_logged_ = true;
  logs_.print(fmt::format("still waiting for the other nodes at {}", to_text(options_.nodes->endpoint)));
}

// Another node that leaves because of a signal is no failure to ranks that have saved their state because of it.
bool NodeSupervisor::is_interrupted() const {
  const bool has_failed = end_ && end_->failure && !(stopped_by_signal_ && !end_->failure->reason.empty());
  return failures().interrupted(stopped_by_signal_) && !has_failed;
}

bool NodeSupervisor::is_reported_here() const {
  return !control_ || !options_.nodes || !end_is_known_to_all_ || options_.nodes->node_rank == 0;
}

void NodeSupervisor::print_report() {
  if (is_interrupted()) {
    logs_.print(
        fmt::format("the run was interrupted: its ranks exited with code {}; start it again to continue from "
                    "its last checkpoint",
                    kExitInterrupted));
    return;
  }
  const auto first = failure();
  if (!first) return;
  account({.failure = first});
  if (!is_reported_here()) return write_error(*first);
  if (!log_folder_.path().empty()) logs_.print(fmt::format("log files: {}", log_folder_.path().string()));
  const bool shown = first->host == host_name() && logs_.shows_stderr(first->first.rank);
  for (const auto& line : report_lines(*first, shown)) logs_.print(line);
  write_error(*first);
}

void NodeSupervisor::write_error(const FailureReport& failure) {
  if (options_.output.error_file.empty()) return;
  try {
    write_error_file(options_.output.error_file, report_json(failure));
  } catch (const std::exception& error) {
    logs_.print(fmt::format("warning: the error file was not written: {}", error.what()));
  }
}

int NodeSupervisor::result() const {
  if (is_interrupted()) return kExitInterrupted;
  if (const auto first = failure()) return exit_code(*first);
  return stop_signal_ != 0 ? 128 + stop_signal_ : 0;
}

int supervise(const LaunchOptions& options, const std::string& file, bool is_host, int parent) {
  // Writing to a pipe without a reader must fail instead of ending the process.
  ::signal(SIGPIPE, SIG_IGN);
  // Nor must a log file beyond `ulimit -f`.
  ::signal(SIGXFSZ, SIG_IGN);
  return NodeSupervisor(options, file, is_host, parent).run();
}

}  // namespace lockstep::launch
