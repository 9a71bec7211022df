// SPDX-License-Identifier: BSD-3-Clause
#include "machine/command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::machine {
namespace {

// For programs whose children keep their output open after they have ended.
constexpr std::chrono::milliseconds kPollInterval{10};
constexpr std::chrono::milliseconds kKillLimit{2'000};
// As in a shell.
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

struct CommandPipe {
  UniqueFd read{};
  UniqueFd write{};
};

CommandPipe command_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error("a pipe to a command cannot be made: " + errno_text(errno));
  return {.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
}

// A child that leads its own process group. The destructor kills the group and reaps the child.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (pid_ > 0) finish();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Leaves it unreaped, so that its pid and process group are not reused.
  bool ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  // Kills the process group and returns the exit code. Gives up on a process that is stuck in a driver.
  int finish() {
    ::kill(-pid_, SIGKILL);
    const Deadline deadline(kKillLimit);
    while (!ended()) {
      if (deadline.expired()) {
        pid_ = -1;
        return 128 + SIGKILL;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
};

// exec keeps blocked and ignored signals.
void restore_signals() {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

[[noreturn]] void become_command(char* const* argv, int in, int out, int err, int report, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotExecutable);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  restore_signals();
  ::execvp(argv[0], argv);
  const int code = errno;
  [[maybe_unused]] const auto written = ::write(report, &code, sizeof(code));
  ::_exit(kNotExecutable);
}

// False at the end of the stream.
bool read_available(UniqueFd& fd, std::string& text) {
  std::array<char, 16384> buffer;
  const auto count = ::read(fd.get(), buffer.data(), buffer.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

void read_once(UniqueFd& fd, std::string& text, bool ready) {
  if (ready && !read_available(fd, text)) fd.reset();
}

// Until both streams are at their end, the child has ended, or the time is over.
void collect(const Child& child, UniqueFd& out, UniqueFd& err, const Deadline& deadline,
             CommandResult& result) {
  bool last_read = false;
  while (out || err || !child.ended()) {
    std::array<pollfd, 2> events{pollfd{.fd = out.get(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = err.get(), .events = POLLIN, .revents = 0}};
    const auto limit =
        last_read ? std::chrono::milliseconds(0) : std::min(kPollInterval, deadline.remaining());
    const int ready = ::poll(events.data(), events.size(), static_cast<int>(limit.count()));
    if (ready > 0) {
      read_once(out, result.out, events[0].revents != 0);
      read_once(err, result.err, events[1].revents != 0);
    } else if (last_read) {
      return;
    }
    if (ready <= 0) last_read = child.ended();
    if (deadline.expired()) {
      result.timed_out = !child.ended();
      return;
    }
  }
}

std::string first_text(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  const auto line = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  return line.substr(0, line.find_last_not_of(" \t") + 1);
}

std::string problem_of(const std::string& name, const CommandResult& result,
                       std::chrono::milliseconds timeout) {
  auto said = first_text(result.err);
  if (said.empty()) said = first_text(result.out);
  const auto ending = said.empty() ? "" : ": " + said;
  if (result.timed_out) {
    return fmt::format("{} gave no answer within {:.3g} s{}", name,
                       static_cast<double>(timeout.count()) / 1000, ending);
  }
  if (result.exit_code == 0) return "";
  return fmt::format("{} failed with exit code {}{}", name, result.exit_code, ending);
}

std::vector<char*> command_argv(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  return argv;
}

// 0 when the program runs, else the errno value of exec, or ETIMEDOUT.
int exec_error(int report, const Deadline& deadline) {
  pollfd event{.fd = report, .events = POLLIN, .revents = 0};
  while (::poll(&event, 1, static_cast<int>(deadline.remaining().count())) <= 0) {
    if (deadline.expired()) return ETIMEDOUT;
  }
  int code = 0;
  return ::read(report, &code, sizeof(code)) == sizeof(code) ? code : 0;
}

struct Streams {
  UniqueFd out{};
  UniqueFd err{};
  UniqueFd report{};
};

pid_t start(const std::vector<std::string>& words, Streams& streams) {
  const auto argv = command_argv(words);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CommandPipe out = command_pipe();
  CommandPipe err = command_pipe();
  CommandPipe report = command_pipe();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("{} cannot be started: fork: {}", words.front(), errno_text(errno)));
  if (pid == 0) {
    become_command(argv.data(), null.get(), out.write.get(), err.write.get(), report.write.get(), parent);
  }
  ::setpgid(pid, pid);  // the child does so too: either may be first
  streams = {.out = std::move(out.read), .err = std::move(err.read), .report = std::move(report.read)};
  for (const auto* stream : {&streams.out, &streams.err}) ::fcntl(stream->get(), F_SETFL, O_NONBLOCK);
  return pid;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  Streams streams;
  Child child(start(words, streams));
  CommandResult result;
  if (const int error = exec_error(streams.report.get(), deadline); error != 0) {
    result.started = false;
    result.exit_code = error == ENOENT ? kNotFound : kNotExecutable;
    result.problem = fmt::format("{} cannot be started: {}", words.front(), errno_text(error));
    return result;
  }
  collect(child, streams.out, streams.err, deadline, result);
  const int code = child.finish();
  if (!result.timed_out) result.exit_code = code;
  result.problem = problem_of(words.front(), result, timeout);
  return result;
}

}  // namespace lockstep::machine
