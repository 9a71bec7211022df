// SPDX-License-Identifier: BSD-3-Clause
#include "launch/rank_process.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "launch/signals.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds kExecLimit{60};

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

// Arguments of exec, prepared before fork so that the child does not allocate.
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
  // Not execve: a script without a #! line must run, as in a shell.
  ::execvpe(image.file.c_str(), image.argv.data(), image.envp.data());
  const int code = errno;
  [[maybe_unused]] const auto written = ::write(report, &code, sizeof(code));
  ::_exit(ProgramError::kNotExecutable);
}

// 0 when the program runs (exec closed its end of the pipe), else the errno value of exec.
int exec_result(int report) {
  pollfd event{.fd = report, .events = POLLIN, .revents = 0};
  const Deadline deadline(kExecLimit);
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

namespace {

// 0, or the errno value that execve(2) would give.
int exec_error_of(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return errno;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

bool is_absent(int code) { return code == ENOENT || code == ENOTDIR; }

[[noreturn]] void refuse(const std::string& name, int code) {
  if (is_absent(code)) {
    throw ProgramError(fmt::format("program \"{}\" was not found: {}", name, errno_text(code)),
                       ProgramError::kNotFound);
  }
  const char* advice = code == EISDIR ? "name a file in it"
                                      : "make it executable (chmod +x), or name its interpreter first, as in "
                                        "\"-- python3 train.py\"";
  throw ProgramError(fmt::format("program \"{}\" cannot be run: {}; {}", name, errno_text(code), advice),
                     ProgramError::kNotExecutable);
}

std::string search(const std::string& name, const std::string& folders) {
  int denied = 0;
  // The colon keeps an empty last element, which means the current folder.
  std::istringstream list(folders + ":");
  for (std::string folder; std::getline(list, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    const int code = exec_error_of(path);
    if (code == 0) return path;
    if (code == EACCES) denied = code;
  }
  if (denied != 0) refuse(name, denied);
  const char* advice = exec_error_of("./" + name) == 0 ? "; this folder has one: use \"./" : "";
  throw ProgramError(fmt::format("program \"{}\" was not found in any folder of PATH{}", name,
                                 *advice != '\0' ? advice + name + "\"" : ""),
                     ProgramError::kNotFound);
}

}  // namespace

std::string find_program(const std::string& name, const Env& env) {
  if (name.find('/') == std::string::npos) return search(name, env.get("PATH").value_or("/bin:/usr/bin"));
  if (const int code = exec_error_of(name); code != 0) refuse(name, code);
  return name;
}

}  // namespace lockstep::launch
