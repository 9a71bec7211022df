// SPDX-License-Identifier: BSD-3-Clause
#include "launch/spare.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <set>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "launch/worker_group.h"

namespace lockstep::launch {
namespace {

std::set<pid_t> threads_of(pid_t process) {
  std::set<pid_t> threads;
  std::error_code gone;  // it may end meanwhile
  std::filesystem::directory_iterator entries(fmt::format("/proc/{}/task", process), gone);
  for (; !gone && entries != std::filesystem::directory_iterator(); entries.increment(gone)) {
    if (const auto thread = parse_number<pid_t>(entries->path().filename().string())) threads.insert(*thread);
  }
  return threads;
}

// A thread that another one has begun meanwhile may have its old affinity, so it looks until there is no new one.
void bind_threads(pid_t process, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  std::set<pid_t> bound;
  for (auto threads = threads_of(process); bound != threads; threads = threads_of(process)) {
    for (const pid_t thread : threads) ::sched_setaffinity(thread, sizeof(set), &set);
    bound = std::move(threads);
  }
}

}  // namespace

Spare Spare::start(const std::string& file, const std::vector<std::string>& arguments,
                   std::map<std::string, std::string> environment) {
  auto [read_end, write_end] = make_pipe();
  if (!read_end) throw_error<LaunchError>("a spare could not be started: {}", call_error_text("pipe", errno));
  Spare spare{.orders = std::move(write_end)};
  ::fcntl(read_end.get(), F_SETFD, 0);  // for the spare; this process starts no other one before it closes it
  environment[kVariable] = std::to_string(read_end.get());
  environment["TORCHELASTIC_ERROR_FILE"] = spare.record.path();
  spare.process = start_rank({.file = file, .arguments = arguments, .environment = std::move(environment)});
  return spare;
}

bool Spare::become(int rank, int local_rank, int restarts, const std::vector<int>& cpus) const {
  if (!cpus.empty()) bind_threads(process.pid, cpus);
  const auto line = fmt::format("{} {} {}\n", rank, local_rank, restarts);
  if (::write(orders.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) return true;
  ::kill(-process.pid, SIGKILL);
  return false;
}

}  // namespace lockstep::launch
