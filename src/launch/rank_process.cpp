// SPDX-License-Identifier: BSD-3-Clause
#include "launch/rank_process.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/program.h>

#include "launch/signals.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds kExecPatience{60};

[[noreturn]] void fail(const char* step, int code) {
  throw LaunchError(fmt::format("a rank could not be started: {}: {}", step, errno_text(code)));
}

struct Pipe {
  UniqueFd read{};
  UniqueFd write{};
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe", errno);
  return {.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : added) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

cpu_set_t set_of(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

// What exec needs, made before fork so that the child allocates nothing.
struct Image {
  explicit Image(const RankCommand& command)
      : file(command.file),
        arguments(command.arguments),
        environment(merged_environment(command.environment)),
        bound(!command.cpus.empty()),
        cpus(set_of(command.cpus)) {}

  std::string file;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  bool bound;
  cpu_set_t cpus;
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);
};

[[noreturn]] void become_rank(const Image& image, int in, int out, int err, int report, pid_t parent) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(ProgramError::kNotExecutable);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  restore_default_signals();
  if (image.bound) ::sched_setaffinity(0, sizeof(image.cpus), &image.cpus);
  // Not execve: like a shell, this runs a script that has no #! line.
  ::execvpe(image.file.c_str(), image.argv.data(), image.envp.data());
  const int code = errno;
  [[maybe_unused]] const auto written = ::write(report, &code, sizeof(code));
  ::_exit(ProgramError::kNotExecutable);
}

// 0 when the program runs (its end of the pipe closed on exec), else the errno value of the exec.
int exec_result(int report) {
  pollfd event{.fd = report, .events = POLLIN, .revents = 0};
  const Deadline deadline(kExecPatience);
  while (::poll(&event, 1, static_cast<int>(deadline.remaining().count())) <= 0) {
    if (deadline.expired()) return ETIMEDOUT;
  }
  int code = 0;
  return ::read(report, &code, sizeof(code)) == sizeof(code) ? code : 0;
}

}  // namespace

RankProcess start_rank(const RankCommand& command) {
  Image image(command);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) fail("/dev/null", errno);
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe report = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork", errno);
  if (pid == 0) become_rank(image, null.get(), out.write.get(), err.write.get(), report.write.get(), parent);
  report.write.reset();
  if (const int code = exec_result(report.read.get()); code != 0) {
    throw ProgramError(
        fmt::format("program \"{}\" cannot be executed: {}{}", command.arguments.front(), errno_text(code),
                    code == ENOENT ? " (the interpreter in its first line, or its loader)" : ""),
        ProgramError::kNotExecutable);
  }
  return {.pid = pid, .out = std::move(out.read), .err = std::move(err.read)};
}

}  // namespace lockstep::launch
