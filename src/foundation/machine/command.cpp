// SPDX-License-Identifier: BSD-3-Clause
#include "machine/command.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <iterator>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/env.h"
#include "base/limits.h"
#include "base/sockets.h"
#include "base/text.h"

namespace lockstep::machine {
namespace {

// For programs whose children keep their output open after they have ended.
constexpr std::chrono::milliseconds kPollInterval{10};
constexpr std::chrono::milliseconds kKillLimit{2'000};
// As in a shell.
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

[[noreturn]] void fail(const char* step) { throw std::system_error(errno, std::generic_category(), step); }

Pipe pipe_or_fail() {
  auto pipe = make_pipe();
  if (!pipe.read) fail("pipe");
  return pipe;
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

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const auto& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

// exec keeps blocked and ignored signals. An ignored SIGHUP stays ignored (nohup).
void restore_default_signals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  // A shell starts background jobs with SIGINT and SIGQUIT ignored; a rank must still end when they are
  // forwarded.
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD, SIGPIPE, SIGXFSZ})
    ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Arguments of exec, prepared before fork so that the child does not allocate.
struct Image {
  explicit Image(const Program& program)
      : file(program.file.c_str()),
        folder(program.folder.empty() ? nullptr : program.folder.c_str()),
        environment(merged_environment(program.environment)),
        bound(!program.cpus.empty()),
        argv(pointers(program.arguments)),
        envp(pointers(environment)) {
    CPU_ZERO(&cpus);
    for (const int cpu : program.cpus) CPU_SET(cpu, &cpus);
  }

  const char* file;
  const char* folder;
  std::vector<std::string> environment;
  bool bound;
  cpu_set_t cpus{};
  std::vector<char*> argv;
  std::vector<char*> envp;
};

[[noreturn]] void report_and_exit(int report) {
  const int code = errno;
  [[maybe_unused]] const auto written = ::write(report, &code, sizeof(code));
  ::_exit(kNotExecutable);
}

[[noreturn]] void become(const Image& image, int in, int out, int err, int report, pid_t parent) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotExecutable);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  restore_default_signals();
  if (image.folder != nullptr && ::chdir(image.folder) != 0) report_and_exit(report);
  if (image.bound) ::sched_setaffinity(0, sizeof(image.cpus), &image.cpus);
  // Not execve: a script without a #! line must run, as in a shell.
  ::execvpe(image.file, image.argv.data(), image.envp.data());
  report_and_exit(report);
}

// 0 when the program runs (exec closed its end of the pipe), else the errno value of exec.
int exec_result(int report, const Deadline& deadline) {
  if (!wait_for(report, POLLIN, deadline)) return ETIMEDOUT;
  int code = 0;
  return ::read(report, &code, sizeof(code)) == sizeof(code) ? code : 0;
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
  // Kills the process group and returns the wait status. Gives up on a process that is stuck in a driver.
  int finish() {
    int status = SIGKILL;
    ::kill(-pid_, SIGKILL);
    // A child that has not called setsid() yet leads no group.
    if (!ended()) ::kill(pid_, SIGKILL);
    const Deadline deadline(kKillLimit);
    while (!ended() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (ended()) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

// Closes a stream that is at its end.
void read_once(UniqueFd& fd, std::string& text, bool ready) {
  if (!ready) return;
  std::array<char, 16384> buffer;
  const auto count = ::read(fd.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return fd.reset();
  text.append(buffer.data(), static_cast<std::size_t>(count));
}

// Until both streams are at their end, the child has ended, the time is over, or a stream has more than `most` bytes.
void collect(const Child& child, UniqueFd& out, UniqueFd& err, const Deadline& deadline, std::size_t most,
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
      result.too_long = result.out.size() > most || result.err.size() > most;
      if (result.too_long) return;
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
                       std::chrono::milliseconds timeout, std::size_t most_output) {
  if (result.too_long) return fmt::format("{} printed more than {}", name, bytes_text(most_output));
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

}  // namespace

RunningProgram start_program(const Program& program, const Deadline& deadline) {
  const Image image(program);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) fail("/dev/null");
  Pipe out = pipe_or_fail();
  Pipe err = pipe_or_fail();
  Pipe report = pipe_or_fail();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  const int in = program.in >= 0 ? program.in : null.get();
  if (pid == 0) become(image, in, out.write.get(), err.write.get(), report.write.get(), parent);
  report.write.reset();
  return {.pid = pid,
          .out = std::move(out.read),
          .err = std::move(err.read),
          .error = exec_result(report.read.get(), deadline)};
}

namespace {

CommandResult not_started(const std::string& name, int exit_code, const std::string& reason) {
  return {.started = false,
          .exit_code = exit_code,
          .problem = fmt::format("{} cannot be started: {}", name, reason)};
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds timeout,
                          const std::string& folder, std::size_t most_output) {
  const Deadline deadline(timeout);
  RunningProgram program;
  try {
    program = start_program({.file = words.front(), .arguments = words, .folder = folder}, deadline);
  } catch (const std::system_error& error) {
    return not_started(words.front(), kNotExecutable, start_error_text(error.code().value()));
  }
  Child child(program.pid);
  if (program.error != 0) {
    const int code = program.error == ENOENT ? kNotFound : kNotExecutable;
    return not_started(words.front(), code, errno_text(program.error));
  }
  CommandResult result;
  for (const auto* stream : {&program.out, &program.err}) ::fcntl(stream->get(), F_SETFL, O_NONBLOCK);
  collect(child, program.out, program.err, deadline, most_output, result);
  const int status = child.finish();
  if (!result.timed_out && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (!result.timed_out) result.exit_code = result.signal != 0 ? 128 + result.signal : WEXITSTATUS(status);
  result.problem = problem_of(words.front(), result, timeout, most_output);
  return result;
}

bool is_on_path(const std::string& name) {
  const auto folders = split(Env().get("PATH").value_or("/bin:/usr/bin"), ':');
  return std::ranges::any_of(folders, [&](const std::string& folder) {
    return ::access(fmt::format("{}/{}", folder.empty() ? "." : folder, name).c_str(), X_OK) == 0;
  });
}

// A connection that ssh would keep for later calls would outlive the run.
std::vector<std::string> remote_shell(const std::string& command) {
  std::istringstream stream(command.empty() ? "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ControlMaster=no "
                                              "-o ServerAliveInterval=5 -o ServerAliveCountMax=3"
                                            : command);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char character : word) {
    text += character == '\'' ? std::string("'\\''") : std::string(1, character);
  }
  return text + "'";
}

std::string address_part(const std::string& host) { return host.substr(host.rfind('@') + 1); }

}  // namespace lockstep::machine
