// SPDX-License-Identifier: BSD-3-Clause
#include "support/ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sched.h>
#include <set>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/deadline.h"
#include "base/sockets.h"
#include "base/unique_fd.h"

namespace lockstep::testing {
namespace {

std::map<std::string, std::function<void()>>& scenarios() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

struct Child {
  int pid = -1;
  UniqueFd handle{};  // pidfd
  UniqueFd out{};
  UniqueFd err{};
};

// Processes that a rank forks write to the same open file, and only O_APPEND keeps their writes apart: a
// memfd has no lock for its file offset.
UniqueFd memory_file() {
  UniqueFd file(::memfd_create("lockstep-test", MFD_CLOEXEC));
  ::fcntl(file.get(), F_SETFL, O_APPEND);
  return file;
}

std::string contents(int fd) {
  std::string text;
  char buffer[4096];
  ::lseek(fd, 0, SEEK_SET);
  for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

std::map<std::string, std::string> rank_environment(const Scenario& scenario, const RunOptions& options,
                                                    int rank, int port) {
  std::map<std::string, std::string> env{
      {kScenarioVariable, scenario.name()},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(options.world_size)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.world_size)},
      {"GROUP_RANK", "0"},
      {"OMP_NUM_THREADS", "1"},
  };
  for (const auto& [name, value] : options.env) env[name] = value;
  if (const auto own = options.rank_env.find(rank); own != options.rank_env.end()) {
    for (const auto& [name, value] : own->second) env[name] = value;
  }
  return env;
}

bool enter_network(const std::map<std::string, std::string>& env) {
  const auto holder = env.find(kNetworkVariable);
  if (holder == env.end()) return true;
  const UniqueFd network(
      ::open(fmt::format("/proc/{}/ns/net", holder->second).c_str(), O_RDONLY | O_CLOEXEC));
  return ::setns(network.get(), CLONE_NEWNET) == 0;
}

[[noreturn]] void become_rank(const std::map<std::string, std::string>& env, const Child& child, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent || !enter_network(env)) ::_exit(127);
  ::dup2(child.out.get(), STDOUT_FILENO);
  ::dup2(child.err.get(), STDERR_FILENO);
  for (const auto& [name, value] : env) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ::execl("/proc/self/exe", "/proc/self/exe", static_cast<char*>(nullptr));
  ::_exit(127);
}

Child start(const std::map<std::string, std::string>& env) {
  Child child{.out = memory_file(), .err = memory_file()};
  const int parent = ::getpid();
  child.pid = ::fork();
  if (child.pid < 0) throw std::runtime_error("fork failed");
  if (child.pid == 0) become_rank(env, child, parent);
  child.handle.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  return child;
}

RankResult finish(Child& child, const Deadline& deadline) {
  RankResult result;
  pollfd event{.fd = child.handle.get(), .events = POLLIN, .revents = 0};
  if (::poll(&event, 1, static_cast<int>(deadline.remaining().count())) == 0) {
    result.timed_out = true;
    ::kill(child.pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = contents(child.out.get());
  result.err = contents(child.err.get());
  return result;
}

}  // namespace

Scenario::Scenario(std::string name, std::function<void()> body) : name_(std::move(name)) {
  if (!scenarios().emplace(name_, std::move(body)).second) {
    fmt::print(stderr, "two scenarios are named {}\n", name_);
    std::abort();
  }
}

std::vector<RankResult> run_ranks(const Scenario& scenario, const RunOptions& options) {
  const ReservedPort port;
  const Deadline deadline(options.timeout);
  std::vector<Child> children(static_cast<std::size_t>(options.world_size));
  std::vector<int> pids;
  for (int rank = 0; rank < options.world_size; ++rank) {
    auto& child = children[static_cast<std::size_t>(rank)];
    if (std::ranges::find(options.absent, rank) == options.absent.end()) {
      child = start(rank_environment(scenario, options, rank, port.port()));
    }
    pids.push_back(child.pid);
  }
  if (options.while_running) options.while_running(pids);
  std::vector<RankResult> results(children.size());
  const auto finish_rank = [&](std::size_t rank) {
    if (children[rank].pid > 0) results[rank] = finish(children[rank], deadline);
  };
  const std::set<std::size_t> stuck(options.stuck.begin(), options.stuck.end());
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    if (!stuck.contains(rank)) finish_rank(rank);
  }
  for (const auto rank : stuck) {
    ::kill(children[rank].pid, SIGKILL);
    finish_rank(rank);
  }
  return results;
}

void expect_all_passed(const std::vector<RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const auto& result = results[rank];
    EXPECT_TRUE(result.exit_code == 0 && !result.timed_out)
        << "rank " << rank << (result.timed_out ? " was killed by the watchdog" : "") << " exit code "
        << result.exit_code << " signal " << result.signal << "\nstdout:\n"
        << result.out << "\nstderr:\n"
        << result.err;
  }
}

namespace {

int run_scenario(const std::string& name) {
  const auto found = scenarios().find(name);
  if (found == scenarios().end()) {
    fmt::print(stderr, "no scenario named {}\n", name);
    return 2;
  }
  try {
    found->second();
  } catch (const std::exception& error) {
    fmt::print(stderr, "scenario {} threw: {}\n", name, error.what());
    return 1;
  }
  if (!::testing::Test::HasFailure()) return 0;
  fmt::print(stderr, "scenario {} failed\n", name);
  return 1;
}

int run_scenarios(const std::string& names) {
  std::istringstream lines(names);
  for (std::string line; std::getline(lines, line);) {
    const auto bar = line.find('|');
    if (bar != std::string::npos) ::setenv("MASTER_PORT", line.c_str() + bar + 1, 1);
    if (const int code = run_scenario(line.substr(0, bar)); code != 0) return code;
  }
  return 0;
}

// Where the launcher does not keep the ranks' output apart.
int run_scenarios_into(const std::string& folder, const std::string& names) {
  const char* const rank =
      std::getenv("PMIX_RANK") != nullptr ? std::getenv("PMIX_RANK") : std::getenv("PMI_RANK");
  const auto file = folder + "/" + rank;
  if (std::freopen((file + ".out").c_str(), "a", stdout) == nullptr) return 2;
  if (std::freopen((file + ".err").c_str(), "a", stderr) == nullptr) return 2;
  std::setvbuf(stderr, nullptr, _IONBF, 0);  // mpiexec may kill a rank that has failed before it flushes
  const int code = run_scenarios(names);
  std::ofstream(file + ".code") << code;
  return code;
}

}  // namespace

int run_scenario_if_asked() {
  const char* const names = std::getenv(kScenarioVariable);
  if (names == nullptr) return -1;
  const char* const folder = std::getenv(kOutputVariable);
  return folder == nullptr ? run_scenarios(names) : run_scenarios_into(folder, names);
}

}  // namespace lockstep::testing
