// SPDX-License-Identifier: BSD-3-Clause
#include "support/ranks.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <random>
#include <sched.h>
#include <set>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/deadline.h"
#include "base/sockets.h"
#include "base/unique_fd.h"
#include "support/family.h"
#include "support/fork_server.h"

namespace lockstep::testing {
namespace {

using Environment = std::map<std::string, std::string>;

// In the environment of the server that forks ranks: its socket.
constexpr const char* kServerVariable = "LOCKSTEP_TEST_SERVER";

struct Body {
  std::function<void()> run;
  Thrown thrown;
};

std::map<std::string, Body>& scenarios() {
  static std::map<std::string, Body> all;
  return all;
}

Environment rank_environment(const Scenario& scenario, const RunOptions& options, int rank, int port) {
  Environment env{
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

bool enter_network() {
  const char* const holder = std::getenv(kNetworkVariable);
  if (holder == nullptr) return true;
  const UniqueFd network(::open(fmt::format("/proc/{}/ns/net", holder).c_str(), O_RDONLY | O_CLOEXEC));
  return ::setns(network.get(), CLONE_NEWNET) == 0;
}

void become_server(int socket) {
  ::setenv(kServerVariable, std::to_string(socket).c_str(), 1);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::execl("/proc/self/exe", "/proc/self/exe", static_cast<char*>(nullptr));
}

// This program, which loads LibTorch once for all ranks: that takes 0.2 s. Forks of one server have the same
// addresses, which would hide that a rank uses those of another. Therefore odd ranks have their own server.
ForkServer& server_of(std::size_t rank) {
  if (rank % 2 == 1) {
    static ForkServer odd(become_server);
    return odd;
  }
  static ForkServer even(become_server);
  return even;
}

Environment environment_of_this_process() {
  Environment variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string entry = *variable;
    const auto equals = entry.find('=');
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

std::vector<std::string> words_of(Environment env) {
  env.merge(environment_of_this_process());
  std::vector<std::string> words;
  for (const auto& [name, value] : env) {
    if (!value.empty()) words.push_back(fmt::format("{}={}", name, value));
  }
  return words;
}

RankResult finish(std::size_t rank, const Child& child, const Deadline& deadline) {
  auto end = server_of(rank).finish(child, deadline);
  RankResult result{.timed_out = end.timed_out, .out = std::move(end.out), .err = std::move(end.err)};
  if (WIFEXITED(end.status)) result.exit_code = WEXITSTATUS(end.status);
  if (WIFSIGNALED(end.status)) result.signal = WTERMSIG(end.status);
  return result;
}

}  // namespace

Scenario::Scenario(std::string name, std::function<void()> body, Thrown thrown) : name_(std::move(name)) {
  if (!scenarios().emplace(name_, Body{std::move(body), thrown}).second) {
    fmt::print(stderr, "two scenarios are named {}\n", name_);
    std::abort();
  }
}

std::vector<RankResult> run_ranks(const Scenario& scenario, const RunOptions& options) {
  const ReservedPort port;
  // Ranks that are there do not wait for the start of a server.
  const auto servers = static_cast<std::size_t>(std::min(options.world_size, 2));
  for (std::size_t rank = 0; rank < servers; ++rank) server_of(rank);
  for (std::size_t rank = 0; rank < servers; ++rank) server_of(rank).wait_until_ready();
  const Deadline deadline(options.timeout);
  std::vector<Child> ranks(static_cast<std::size_t>(options.world_size));
  std::vector<int> pids;
  for (int rank = 0; rank < options.world_size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (std::ranges::find(options.absent, rank) == options.absent.end())
      ranks[index] = server_of(index).start(words_of(rank_environment(scenario, options, rank, port.port())));
    pids.push_back(ranks[index].pid);
  }
  if (options.while_running) options.while_running(pids);
  std::vector<RankResult> results(ranks.size());
  const auto finish_rank = [&](std::size_t rank) {
    if (ranks[rank].pid > 0) results[rank] = finish(rank, ranks[rank], deadline);
  };
  const std::set<std::size_t> stuck(options.stuck.begin(), options.stuck.end());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!stuck.contains(rank)) finish_rank(rank);
  }
  for (const auto rank : stuck) {
    ::kill(ranks[rank].pid, SIGKILL);
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
  const auto& [run, thrown] = found->second;
  if (thrown == Thrown::leaves_main) {
    run();
  } else {
    try {
      run();
    } catch (const std::exception& error) {
      fmt::print(stderr, "scenario {} threw: {}\n", name, error.what());
      return 1;
    }
  }
  if (!::testing::Test::HasFailure()) return 0;
  fmt::print(stderr, "scenario {} failed\n", name);
  return 1;
}

int run_scenarios(const std::string& names) {
  if (!enter_network()) {
    std::perror("the test's network cannot be entered");
    return 2;
  }
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

// So that forks of one server have different addresses of what they allocate.
void move_next_memory() {
  std::random_device random;
  const long page = ::sysconf(_SC_PAGESIZE);
  ::sbrk(page * static_cast<long>(random() % 4096));
  ::mmap(nullptr, static_cast<std::size_t>(page) * (1 + random() % (1 << 16)), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// The variables that libraries and the allocator read before main(), and Family in /proc.
Environment read_at_start(Environment variables) {
  constexpr std::array kPrefixes{"OMP_", "MALLOC_", "LD_",   "GLIBC_", "TORCH_", "GOMP_",
                                 "KMP_", "MKL_",    "ASAN_", "TSAN_",  "UBSAN_", kFamilyVariable};
  std::erase_if(variables, [&](const auto& variable) {
    return std::ranges::none_of(kPrefixes,
                                [&](const char* each) { return variable.first.starts_with(each); });
  });
  return variables;
}

// exit() ends what the scenario has made, and then not LibTorch, whose end takes 0.1 s: its tables of operators
// are copies that the fork would have to make first. Ranks that are no forks end it. So do sanitizers, which
// report at the end, and ranks that fail: what others say of them depends on who ends first.
void skip_the_end_of_libraries() {
#ifndef LOCKSTEP_SANITIZED
  ::on_exit(
      [](int code, void*) {
        if (code != 0) return;
        std::fflush(nullptr);
        ::_exit(0);
      },
      nullptr);
#endif
}

// In a fork of the server. Starts the program again if it must read its environment from the start.
void become_rank(const std::vector<std::string>& words) {
  const auto of_server = environment_of_this_process();
  ::clearenv();
  for (const auto& word : words) ::putenv(::strdup(word.c_str()));
  if (read_at_start(of_server) != read_at_start(environment_of_this_process())) {
    ::execl("/proc/self/exe", "/proc/self/exe", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  move_next_memory();
  skip_the_end_of_libraries();
}

}  // namespace

int run_scenario_if_asked() {
  if (const char* const socket = std::getenv(kServerVariable)) become_rank(serve_forks(std::atoi(socket)));
  const char* const names = std::getenv(kScenarioVariable);
  if (names == nullptr) return -1;
  const char* const folder = std::getenv(kOutputVariable);
  return folder == nullptr ? run_scenarios(names) : run_scenarios_into(folder, names);
}

}  // namespace lockstep::testing
