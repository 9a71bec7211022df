// SPDX-License-Identifier: BSD-3-Clause
#include "run_on_hosts.h"

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/text.h"
#include "base/throw_error.h"
#include "observe/find_runs.h"
#include "observe/host_snapshot.h"
#include "observe/join_hosts.h"
#include "observe/processes.h"

namespace lockstep::cli {
namespace {

constexpr std::chrono::seconds kLimit{5};

// The next launcher at or above the process; 0 without one.
int launcher_above(int pid) {
  for (; pid > 1; pid = observe::status_number(pid, "PPid:")) {
    if (launch::can_be_asked(pid)) return pid;
  }
  return 0;
}

// The only one of this user, such as that of a host from which `lockstep run --hosts` was started; 0 if there is
// none, or more.
int only_launcher() {
  int found = 0;
  for (const auto& process : observe::own_processes()) {
    if (!launch::can_be_asked(process.pid)) continue;
    if (found != 0) return 0;
    found = process.pid;
  }
  return found;
}

int find_launcher(const std::string& name) {
  const auto pid = parse_number<int>(name);
  if (pid && launch::can_be_asked(*pid)) return *pid;
  if (name.empty()) {
    if (const int launcher = only_launcher(); launcher != 0) return launcher;
  }
  const auto run = observe::find_run(name);
  if (const int launcher = launcher_above(run.pids.front()); launcher != 0) return launcher;
  throw_error<ArgumentError>(
      "--hosts: no launcher of several nodes is above the ranks of this run (pid {}), so the ranks of other hosts "
      "cannot be seen; start the run by `lockstep run` with --hosts or --nnodes, or leave --hosts out",
      run.pids.front());
}

observe::Run unseen_host(const launch::HostView& host, const std::string& problem) {
  observe::Run run{.host = host.name};
  run.hosts.push_back({.name = host.name, .problem = problem});
  return run;
}

}  // namespace

observe::Figures HostsReading::figures(const HostsReading* earlier) const {
  auto figures = observe::figures_of(run, earlier == nullptr ? nullptr : &earlier->run);
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    const auto known = resident.find(run.ranks[i].rank);
    if (known != resident.end()) figures.ranks[i].memory.resident = known->second;
  }
  return figures;
}

HostsReading reading_of(std::vector<launch::HostView> hosts) {
  std::vector<observe::Run> runs;
  HostsReading reading;
  for (const auto& host : hosts) {
    if (host.parts.empty()) {
      runs.push_back(unseen_host(host, host.problem));
      continue;
    }
    try {
      auto snapshot = observe::snapshot_from(host.parts);
      snapshot.run.host = host.name;
      snapshot.run.skew = host.after_ms * 1'000'000;
      if (!host.problem.empty()) snapshot.run.hosts.push_back({host.name, host.problem});
      runs.push_back(std::move(snapshot.run));
      reading.resident.merge(snapshot.resident);
    } catch (const Error& error) {
      runs.push_back(unseen_host(host, error.what()));
    }
  }
  reading.run = observe::join_hosts(std::move(runs));
  return reading;
}

RunOnHosts::RunOnHosts(const std::string& name) : launcher_(find_launcher(name)) {}

HostsReading RunOnHosts::read() { return read_within(2 * kLimit).value(); }

std::optional<HostsReading> RunOnHosts::read_within(std::chrono::milliseconds limit) {
  if (!question_) question_.emplace(launcher_, Deadline(kLimit));
  try {
    auto hosts = question_->wait(Deadline(limit));
    if (!hosts) return std::nullopt;
    question_.reset();
    return reading_of(std::move(*hosts));
  } catch (...) {
    question_.reset();
    throw;
  }
}

bool RunOnHosts::has_ended() const { return ::kill(launcher_, 0) != 0 && errno == ESRCH; }

}  // namespace lockstep::cli
