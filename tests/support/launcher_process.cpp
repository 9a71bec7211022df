// SPDX-License-Identifier: BSD-3-Clause
#include "support/launcher_process.h"

#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <regex>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <fmt/format.h>

#include "base/sockets.h"

namespace lockstep::testing {
namespace {

struct Ends {
  UniqueFd ours{};
  UniqueFd theirs{};
};

Ends make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  return {.ours = UniqueFd(ends[0]), .theirs = UniqueFd(ends[1])};
}

Ends make_terminal() {
  int master = -1;
  int slave = -1;
  if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) throw std::runtime_error("openpty failed");
  ::fcntl(master, F_SETFD, FD_CLOEXEC);
  ::fcntl(slave, F_SETFD, FD_CLOEXEC);
  return {.ours = UniqueFd(master), .theirs = UniqueFd(slave)};
}

[[noreturn]] void become_launcher(const std::vector<std::string>& arguments,
                                  const LauncherProcess::Options& options, const Family& family, int out,
                                  int err, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(125);
  if (options.output == Output::terminal) {
    ::login_tty(out);
  } else {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
  }
  for (const auto& [name, value] : family.mark()) ::setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : options.env) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  const std::string program = options.program.empty() ? LOCKSTEP_PROGRAM : options.program;
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  ::_exit(125);
}

// False at the end of the stream.
bool append_from(UniqueFd& fd, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
  if (count > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
    return true;
  }
  fd.reset();
  return false;
}

std::vector<std::string> run_arguments(int ranks, const std::vector<std::string>& more_options,
                                       const std::vector<std::string>& command) {
  std::vector<std::string> arguments{"run", "--nproc-per-node", std::to_string(ranks)};
  arguments.insert(arguments.end(), more_options.begin(), more_options.end());
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), command.begin(), command.end());
  return arguments;
}

int occurrences(const std::string& text, std::string_view part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace

LauncherProcess::LauncherProcess(const std::vector<std::string>& arguments, const Options& options)
    : deadline_(options.watchdog) {
  Ends out = options.output == Output::terminal ? make_terminal() : make_pipe();
  Ends err = options.output == Output::two_pipes ? make_pipe() : Ends{};
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    become_launcher(arguments, options, family_, out.theirs.get(), (err.theirs ? err : out).theirs.get(),
                    parent);
  }
  out_fd_ = std::move(out.ours);
  err_fd_ = std::move(err.ours);
}

LauncherProcess::~LauncherProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void LauncherProcess::send(int signal) const { ::kill(pid_, signal); }

void LauncherProcess::type(std::string_view keys) const {
  if (::write(out_fd_.get(), keys.data(), keys.size()) < 0) throw std::runtime_error("cannot type");
}

bool LauncherProcess::read_some() {
  std::array<pollfd, 2> events{pollfd{.fd = out_fd_.get(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = err_fd_.get(), .events = POLLIN, .revents = 0}};
  if (!out_fd_ && !err_fd_) return false;
  if (::poll(events.data(), events.size(), static_cast<int>(deadline_.remaining().count())) == 0) {
    throw std::runtime_error("watchdog: the launcher is still running; stdout:\n" + out_ + "\nstderr:\n" +
                             err_);
  }
  if (events[0].revents != 0) append_from(out_fd_, out_);
  if (events[1].revents != 0) append_from(err_fd_, err_);
  return true;
}

void LauncherProcess::wait_for(std::string_view text, int times) {
  while (occurrences(out_, text) < times) {
    if (!read_some()) throw std::runtime_error(fmt::format("\"{}\" never came; stderr:\n{}", text, err_));
  }
}

int LauncherProcess::finish() {
  while (read_some()) {
  }
  int status = 0;
  // The launcher's output has ended, so it is about to exit; should it not, ctest's own timeout ends this.
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

pid_t LauncherProcess::rank_pid(int rank) const {
  const std::regex line(fmt::format("pid ([0-9]+) of {}\\b", rank));
  std::smatch match;
  if (!std::regex_search(out_, match, line)) throw std::runtime_error("that rank has told no pid");
  return std::stoi(match[1]);
}

std::string free_port() {
  static std::vector<ReservedPort> all;
  return std::to_string(all.emplace_back().port());
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> helper_ranks(int ranks, const std::string& what,
                                      const std::vector<std::string>& more_options) {
  return run_arguments(ranks, more_options, {LAUNCHER_RANK_PROGRAM, what});
}

std::vector<std::string> shell_ranks(int ranks, const std::string& script,
                                     const std::vector<std::string>& more_options) {
  return run_arguments(ranks, more_options, {"/bin/sh", "-c", script});
}

}  // namespace lockstep::testing
