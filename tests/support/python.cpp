// SPDX-License-Identifier: BSD-3-Clause
#include "support/python.h"

#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::testing {
namespace {

UniqueFd memory_file() { return UniqueFd(::memfd_create("python", MFD_CLOEXEC)); }

std::string contents(int fd) {
  std::string text(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const auto count = ::pread(fd, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  return text;
}

[[noreturn]] void become_python(const std::string& path, const PythonOptions& options, int out, int err) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::setenv("OMP_NUM_THREADS", "1", 0);
  for (const auto& [name, value] : options.env) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> words{LOCKSTEP_PYTHON, path};
  words.insert(words.end(), options.args.begin(), options.args.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

bool ended_in_time(pid_t pid, std::chrono::milliseconds timeout) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd event{.fd = handle.get(), .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, static_cast<int>(timeout.count())) > 0;
}

}  // namespace

std::string run_python(const std::string& script, const PythonOptions& options) {
  const std::string path = fmt::format("{}/{}", LOCKSTEP_TESTS_FOLDER, script);
  const auto out = memory_file();
  const auto err = memory_file();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) become_python(path, options, out.get(), err.get());
  const bool in_time = ended_in_time(pid, options.timeout);
  if (!in_time) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (in_time && WIFEXITED(status) && WEXITSTATUS(status) == 0) return contents(out.get());
  const auto how = !in_time              ? "was killed by the watchdog"
                   : WIFSIGNALED(status) ? "was ended by a signal"
                                         : "failed";
  throw std::runtime_error(fmt::format("{} {} {} (status {}); its stderr:\n{}", LOCKSTEP_PYTHON, path, how,
                                       status, contents(err.get())));
}

}  // namespace lockstep::testing
