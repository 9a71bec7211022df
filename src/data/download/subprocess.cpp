// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/subprocess.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "base/unique_fd.h"

namespace lockstep::data {
namespace {

constexpr int kCannotStart = 127;  // a shell's exit code for a missing command
constexpr off_t kMaxOutput = 600;

struct Child {
  pid_t pid = -1;
  UniqueFd handle{};  // pidfd
  UniqueFd output{};
};

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void exec_command(char* const* arguments, const char* folder, int output, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = ::open("/dev/null", O_RDONLY);
  const bool ready = ::getppid() == parent && null >= 0 && ::dup2(null, STDIN_FILENO) >= 0 &&
                     ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(output, STDERR_FILENO) >= 0 &&
                     ::chdir(folder) == 0;
  if (ready) ::execvp(arguments[0], arguments);
  ::_exit(kCannotStart);
}

Child start(const std::vector<std::string>& command, const std::filesystem::path& folder) {
  std::vector<char*> arguments;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  Child child{.output = UniqueFd(::memfd_create("output", MFD_CLOEXEC))};
  const pid_t parent = ::getpid();
  child.pid = ::fork();
  if (child.pid == 0) exec_command(arguments.data(), folder.c_str(), child.output.get(), parent);
  if (child.pid < 0) throw_error<DataError>("{}: cannot be started: {}", command[0], errno_text(errno));
  child.handle.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  return child;
}

bool wait_until(const Child& child, const Deadline& deadline) {
  pollfd event{.fd = child.handle.get(), .events = POLLIN, .revents = 0};
  while (true) {
    const int ready = ::poll(&event, 1, static_cast<int>(deadline.remaining().count()));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

std::string end_of_output(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::min(size, kMaxOutput)), '\0');
  const auto count = ::pread(fd, text.data(), text.size(), size - static_cast<off_t>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

void run_command(const std::vector<std::string>& command, const std::filesystem::path& folder,
                 const Deadline& deadline) {
  const Child child = start(command, folder);
  const bool in_time = wait_until(child, deadline);
  if (!in_time) ::kill(child.pid, SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  const auto text = fmt::format("{}", fmt::join(command, " "));
  if (!in_time) throw_error<DataError>("\"{}\" was not complete at the deadline", text);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotStart) {
    throw_error<DataError>("\"{}\" could not be started; is {} installed?", text, command[0]);
  }
  const auto outcome = WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                           : fmt::format("failed with exit code {}", WEXITSTATUS(status));
  throw_error<DataError>("\"{}\" {}: {}", text, outcome, end_of_output(child.output.get()));
}

}  // namespace lockstep::data
