// SPDX-License-Identifier: BSD-3-Clause
#include "support/mpi_ranks.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <string_view>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/sockets.h"
#include "base/unique_fd.h"
#include "support/file_text.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

// A run that begins must not meet the store of the one that ends, so each has a port.
std::string lines_of(const std::vector<std::string>& scenarios, const std::vector<ReservedPort>& ports) {
  std::string lines;
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    lines += fmt::format("{}|{}\n", scenarios[i], ports[i].port());
  }
  return lines;
}

std::map<std::string, std::string> mpi_environment(const std::string& lines, const RunOptions& options,
                                                   const TempFolder& folder) {
  // Tests have more ranks than cores, and run as root in containers.
  std::map<std::string, std::string> env{{kScenarioVariable, lines},
                                         {kOutputVariable, folder.path().string()},
                                         {"OMP_NUM_THREADS", "1"},
                                         {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                         {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                         {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                         {"OMPI_MCA_mpi_yield_when_idle", "1"}};
  for (const auto& [name, value] : options.env) env[name] = value;
  return env;
}

std::string mpiexec() {
  const char* const other = std::getenv("LOCKSTEP_TEST_MPIEXEC");
  return other != nullptr ? other : LOCKSTEP_MPIEXEC;
}

// Gives each rank its variables. Not as programs of their own: Open MPI 5.0.7 crashes at several of them.
std::string script_of(const std::map<int, std::map<std::string, std::string>>& rank_env) {
  std::string script = "case ${PMIX_RANK:-$PMI_RANK} in";
  for (const auto& [rank, env] : rank_env) {
    script += fmt::format(" {})", rank);
    for (const auto& [name, value] : env) script += fmt::format(" export {}='{}';", name, value);
    script += ";";
  }
  return script + " esac; exec \"$0\"";
}

std::vector<std::string> command_of(const RunOptions& options, const std::string& program,
                                    const std::vector<std::string>& mpiexec_options) {
  std::vector<std::string> words{mpiexec()};
  if (is_open_mpi_5()) words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  words.insert(words.end(), mpiexec_options.begin(), mpiexec_options.end());
  words.insert(words.end(), {"-n", std::to_string(options.world_size)});
  if (!options.rank_env.empty()) words.insert(words.end(), {"/bin/sh", "-c", script_of(options.rank_env)});
  words.push_back(program);
  return words;
}

[[noreturn]] void become_mpiexec(const std::map<std::string, std::string>& env,
                                 const std::vector<std::string>& command, const std::string& err) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int input = ::open("/dev/null", O_RDONLY);
  const int output = ::open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  ::_exit(127);
}

// Its exit code, or -signal.
int finish(pid_t pid, std::chrono::seconds timeout) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd event{.fd = handle.get(), .events = POLLIN, .revents = 0};
  const auto limit = static_cast<int>(std::chrono::milliseconds(timeout).count());
  if (::poll(&event, 1, limit) == 0) {
    ::kill(pid, SIGTERM);  // it ends the ranks
    if (::poll(&event, 1, 5'000) == 0) ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

bool is_open_mpi_5() {
  static const bool is = [] {
    std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen((mpiexec() + " --version").c_str(), "r"), &::pclose);
    std::array<char, 200> text{};
    if (!pipe || std::fgets(text.data(), text.size(), pipe.get()) == nullptr) return false;
    return std::string_view(text.data()).find("(Open MPI) 5.") != std::string_view::npos;
  }();
  return is;
}

MpiRun run_mpi_ranks(const std::vector<std::string>& scenarios, const RunOptions& options,
                     const std::vector<std::string>& mpiexec_options) {
  const TempFolder folder;
  const std::vector<ReservedPort> ports(scenarios.size());
  const auto env = mpi_environment(lines_of(scenarios, ports), options, folder);
  const auto command =
      command_of(options, std::filesystem::read_symlink("/proc/self/exe").string(), mpiexec_options);
  const auto pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) become_mpiexec(env, command, folder.file("mpiexec"));
  MpiRun run{.exit_code = finish(pid, options.timeout), .err = text_of(folder / "mpiexec")};
  for (int rank = 0; rank < options.world_size; ++rank) {
    const auto name = std::to_string(rank);
    const auto code = text_of(folder / (name + ".code"));
    run.ranks.push_back({.exit_code = code.empty() ? -1 : std::stoi(code),
                         .out = text_of(folder / (name + ".out")),
                         .err = text_of(folder / (name + ".err"))});
  }
  return run;
}

void expect_all_passed(const MpiRun& run) {
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_all_passed(run.ranks);
}

}  // namespace lockstep::testing
