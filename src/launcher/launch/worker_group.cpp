// SPDX-License-Identifier: BSD-3-Clause
#include "launch/worker_group.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "launch/launch.h"
#include "launch/launch_limits.h"
#include "launch/run_store_server.h"

namespace lockstep::launch {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

WorkerGroup::WorkerGroup(const LaunchOptions& options, const std::string& file,
                         const NodeAssignment& assignment, LogFolder& folder, LogMultiplexer& logs,
                         std::function<void()> after_start)
    : options_(options),
      file_(file),
      assignment_(assignment),
      logs_(logs),
      after_start_(std::move(after_start)),
      cores_(options),
      wanted_spares_(options.spares) {
  if (options.on_loss != OnLoss::restart) {
    std::optional<RunMemory::Share> share;
    if (options.nodes) {
      share = {.first_rank = assignment.first_rank,
               .ranks = options.nproc_per_node,
               .store_port = assignment.store_port,
               .store_token =
                   RunStoreServer::token_of(assignment.store_token, assignment.node_rank, assignment.epoch)};
    }
    memory_.emplace(RunMemory::create(assignment.world_size, options.on_loss == OnLoss::shrink, share));
    // The other ranks have been there for long.
    if (assignment.epoch > 0) memory_->state().phase = RunPhase::running;
  }
  if (folder.wanted()) folder_ = folder.begin_attempt(assignment.restarts);
  set_filters();
  for (int local_rank = 0; local_rank < options.nproc_per_node; ++local_rank) {
    auto process = start(local_rank);
    logs_.add_rank(assignment_.first_rank + local_rank, stream_of(local_rank, true, std::move(process.out)),
                   stream_of(local_rank, false, std::move(process.err)));
  }
  fill_spares();
}

machine::RunningProgram WorkerGroup::start(int local_rank) {
  records_.insert_or_assign(local_rank, new_record(local_rank));
  auto environment = rank_environment(options_, assignment_, local_rank, cores_.threads(local_rank), Env());
  environment["TORCHELASTIC_ERROR_FILE"] = records_.at(local_rank).path();
  if (memory_) environment[RunMemory::kVariable] = memory_->variable();
  auto process = start_rank({.file = file_,
                             .arguments = rank_arguments(options_, local_rank),
                             .environment = std::move(environment),
                             .cpus = cores_.cpus(local_rank)});
  alive_.emplace(process.pid, local_rank);
  after_start_();
  return process;
}

ErrorRecord WorkerGroup::new_record(int local_rank) const {
  if (folder_.empty()) return {};
  const auto file = file_of(local_rank, "error.json");
  make_log_folder(file.parent_path());
  remove_error_file(file);
  return ErrorRecord(file);
}

bool WorkerGroup::is_in_elastic_run() const {
  return memory_ && memory_->state().phase.load() == RunPhase::running;
}

void WorkerGroup::lose_others() const {
  auto& lost = memory_->state().hosts_lost;
  lost.fetch_add(1, std::memory_order_release);
  futex_wake_all(lost);
}

int WorkerGroup::lose(int local_rank) const {
  memory_->lose(assignment_.first_rank + local_rank);
  return static_cast<int>(memory_->remaining().size());
}

bool WorkerGroup::can_replace() const {
  return replaces_ranks(options_.on_loss) && is_in_elastic_run() &&
         assignment_.restarts < options_.max_restarts;
}

pid_t WorkerGroup::replace(int local_rank) {
  ++assignment_.restarts;
  auto spare = use_spare(local_rank);
  auto process = spare ? std::move(*spare) : start(local_rank);
  logs_.replace_rank(assignment_.first_rank + local_rank, std::move(process.out), std::move(process.err));
  return process.pid;
}

std::optional<machine::RunningProgram> WorkerGroup::use_spare(int local_rank) {
  const int rank = assignment_.first_rank + local_rank;
  const auto found = std::ranges::find_if(spares_, [&](const Spare& spare) {
    return spare.become(rank, local_rank, assignment_.restarts, cores_.cpus(local_rank));
  });
  if (found == spares_.end()) return std::nullopt;
  auto spare = std::move(*found);
  spares_.erase(found);
  alive_.emplace(spare.process.pid, local_rank);
  records_.insert_or_assign(local_rank, std::move(spare.record));
  return std::move(spare.process);
}

void WorkerGroup::fill_spares() {
  const int most = std::min(wanted_spares_, options_.max_restarts - assignment_.restarts);
  while (static_cast<int>(spares_.size()) < most) {
    auto environment = spare_environment(options_, assignment_, cores_.threads(0), Env());
    environment[RunMemory::kVariable] = memory_->variable();
    spares_.push_back(Spare::start(file_, rank_arguments(options_, 0), std::move(environment)));
    after_start_();
  }
}

bool WorkerGroup::take_spare(pid_t child) {
  if (std::erase_if(spares_, [&](const Spare& spare) { return spare.process.pid == child; }) == 0)
    return false;
  --wanted_spares_;
  return true;
}

std::filesystem::path WorkerGroup::file_of(int local_rank, const char* name) const {
  return folder_ / std::to_string(local_rank) / name;
}

void WorkerGroup::set_filters() {
  const auto& output = options_.output;
  FilteredLog out{.texts = output.duplicate_stdout_filters};
  FilteredLog err{.texts = output.duplicate_stderr_filters};
  if (!out.texts.empty()) out.file = open_log(folder_ / "filtered_stdout.log");
  if (!err.texts.empty()) err.file = open_log(folder_ / "filtered_stderr.log");
  logs_.set_filters(std::move(out), std::move(err));
}

RankStream WorkerGroup::stream_of(int local_rank, bool is_out, UniqueFd pipe) const {
  const auto& output = options_.output;
  const auto chosen = [&](const StreamChoice& choice) {
    return is_out ? choice.has_out(local_rank) : choice.has_err(local_rank);
  };
  RankStream stream{.pipe = std::move(pipe)};
  if (chosen(output.redirects) || chosen(output.tee)) {
    stream.copy = open_log(file_of(local_rank, is_out ? "stdout.log" : "stderr.log"));
  }
  const bool shown = output.shown.empty() || output.shown.contains(local_rank);
  stream.passed_on = shown && (chosen(output.tee) || !chosen(output.redirects));
  if (!is_out || output.mark_lines) {
    stream.prefix = rank_prefix(prefix_of(local_rank), assignment_.first_rank + local_rank,
                                is_out ? STDOUT_FILENO : STDERR_FILENO);
    const auto& own = output.prefix_template;
    stream.prefix_names_rank = !own || own->find("${rank}") != std::string::npos;
  }
  return stream;
}

std::string WorkerGroup::prefix_of(int local_rank) const {
  const int rank = assignment_.first_rank + local_rank;
  if (options_.output.prefix_template) {
    return substitute_variables(*options_.output.prefix_template, {{"role_name", options_.role},
                                                                   {"rank", std::to_string(rank)},
                                                                   {"local_rank", std::to_string(local_rank)},
                                                                   {"hostname", host_name()}});
  }
  return options_.nodes ? fmt::format("[{} rank {}] ", host_name(), rank) : fmt::format("[rank {}] ", rank);
}

std::vector<int> WorkerGroup::alive_ranks() const {
  std::vector<int> ranks;
  ranks.reserve(alive_.size());
  for (const auto& [pid, local_rank] : alive_) ranks.push_back(assignment_.first_rank + local_rank);
  std::ranges::sort(ranks);
  return ranks;
}

std::optional<RankExit> WorkerGroup::take_exit(const RankExit& child, bool is_stopping) {
  const auto rank = alive_.extract(child.pid);
  if (rank.empty()) return std::nullopt;
  auto exit = child;
  exit.local_rank = rank.mapped();
  exit.rank = assignment_.first_rank + exit.local_rank;
  exit.interrupted = exit.signal == 0 && exit.code == kExitInterrupted;
  exit.left_early = exit.signal == 0 && exit.code == 0 && !is_stopping && is_in_elastic_run();
  return exit;
}

void WorkerGroup::signal_ranks(int signal) {
  for (auto& spare : spares_) spare.orders.reset();
  for (const auto& [pid, rank] : alive_) {
    ::kill(-pid, signal);
    ::kill(-pid, SIGCONT);  // otherwise a stopped process does not end
  }
}

void WorkerGroup::warn_ranks(int signal) const {
  for (const auto& [pid, rank] : alive_) ::kill(pid, signal);
}

FailureReport WorkerGroup::report(const RankExit& first) const {
  const auto& tail = logs_.stderr_tail(first.rank).lines();
  FailureReport report{.first = first,
                       .host = host_name(),
                       .restarts = assignment_.restarts,
                       .time = seconds_since_1970(),
                       .message = records_.at(first.local_rank).message(),
                       .stderr_tail = tail,
                       .lost_peer = reports_lost_peer(tail),
                       .ends_run = memory_ && memory_->state().phase.load() == RunPhase::stopped};
  const auto log = file_of(first.local_rank, "stderr.log");
  if (!folder_.empty() && std::filesystem::exists(log)) report.log_file = log.string();
  return report;
}

RankCores::RankCores(const LaunchOptions& options)
    : threads_(options.adopted ? options.adopted->threads : std::vector<int>()),
      cpus_(machine::assign_cores(machine::read_cores(), options.nproc_per_node, options.bind)),
      share_(std::max(1, usable_cores() / options.nproc_per_node)) {}

// A cgroup quota may allow less than the CPUs to which the rank is bound.
int RankCores::threads(int local_rank) const {
  if (!threads_.empty()) return threads_.at(static_cast<std::size_t>(local_rank));
  const int bound = static_cast<int>(cpus(local_rank).size());
  return bound == 0 ? share_ : std::min(bound, share_ + 1);
}

std::vector<int> threads_of_ranks(const LaunchOptions& options) {
  const RankCores cores(options);
  const auto set = Env().get_int("OMP_NUM_THREADS");
  std::vector<int> threads;
  for (int rank = 0; rank < options.nproc_per_node; ++rank)
    threads.push_back(set ? static_cast<int>(*set) : cores.threads(rank));
  return threads;
}

machine::RunningProgram start_rank(const machine::Program& program) {
  try {
    auto running = machine::start_program(program, Deadline(kExecLimit));
    if (running.error == 0) return running;
    throw ProgramError(
        fmt::format("program \"{}\" cannot be executed: {}{}", program.arguments.front(),
                    errno_text(running.error),
                    running.error == ENOENT ? " (the interpreter in its first line, or its loader)" : ""),
        ProgramError::kNotExecutable);
  } catch (const std::system_error& error) {
    throw_error<LaunchError>("a rank could not be started: {}", start_error_text(error.code().value()));
  }
}

}  // namespace lockstep::launch
