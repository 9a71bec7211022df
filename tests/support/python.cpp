// SPDX-License-Identifier: BSD-3-Clause
#include "support/python.h"

#include <array>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <span>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/fd_passing.h"
#include "base/sockets.h"
#include "base/unique_fd.h"

namespace lockstep::testing {
namespace {

// What several processes write to it stays, one after the other.
UniqueFd memory_file() {
  UniqueFd file(::memfd_create("python", MFD_CLOEXEC));
  ::fcntl(file.get(), F_SETFL, O_APPEND);
  return file;
}

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

// A memory file of words that end with a zero byte each.
UniqueFd request_for(const std::string& path, const PythonOptions& options) {
  std::vector<std::string> words{path, std::to_string(options.args.size())};
  words.insert(words.end(), options.args.begin(), options.args.end());
  for (const auto& [name, value] : options.env) words.push_back(fmt::format("{}={}", name, value));
  std::string text;
  for (const auto& word : words) text.append(word).push_back('\0');
  auto file = memory_file();
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("the request for Python cannot be written");
  return file;
}

// support/python_server.py: a Python that has imported PyTorch, which takes seconds, and runs each script in
// a fork of itself. It ends with this process, and every script with it.
class PythonServer {
 public:
  PythonServer() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error("socketpair failed");
    socket_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) become_python(theirs.get());
  }
  ~PythonServer() {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  PythonServer(const PythonServer&) = delete;
  PythonServer& operator=(const PythonServer&) = delete;

  // The wait status of a script, or nothing when it has not ended in time.
  std::optional<int> run(std::span<const int> request_out_err, std::chrono::milliseconds timeout) {
    const Deadline deadline(timeout);
    send_fds(socket_.get(), 0, request_out_err, deadline);
    if (!wait_for(socket_.get(), POLLIN, deadline)) return std::nullopt;
    int status = 0;
    if (::recv(socket_.get(), &status, sizeof(status), 0) != sizeof(status))
      throw std::runtime_error("python_server.py has ended; see stderr");
    return status;
  }

 private:
  [[noreturn]] static void become_python(int socket) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);  // to end with the server: ranks that a script has forked
    ::fcntl(socket, F_SETFD, 0);
    ::setenv("OMP_NUM_THREADS", "1", 0);
    const auto path = fmt::format("{}/support/python_server.py", LOCKSTEP_TESTS_FOLDER);
    ::execl(LOCKSTEP_PYTHON, LOCKSTEP_PYTHON, path.c_str(), std::to_string(socket).c_str(),
            static_cast<char*>(nullptr));
    ::_exit(127);
  }

  UniqueFd socket_{};
  pid_t pid_ = -1;
};

}  // namespace

std::string run_python(const std::string& script, const PythonOptions& options) {
  static std::unique_ptr<PythonServer> server;
  const std::string path = fmt::format("{}/{}", LOCKSTEP_TESTS_FOLDER, script);
  const auto request = request_for(path, options);
  const auto out = memory_file();
  const auto err = memory_file();
  if (!server) server = std::make_unique<PythonServer>();
  std::optional<int> status;
  try {
    status = server->run(std::array{request.get(), out.get(), err.get()}, options.timeout);
  } catch (...) {
    server.reset();
    throw;
  }
  if (!status) server.reset();
  if (status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return contents(out.get());
  const auto how = !status                ? "was killed by the watchdog"
                   : WIFSIGNALED(*status) ? "was ended by a signal"
                                          : "failed";
  throw std::runtime_error(fmt::format("{} {} {} (status {}); its stderr:\n{}", LOCKSTEP_PYTHON, path, how,
                                       status.value_or(SIGKILL), contents(err.get())));
}

}  // namespace lockstep::testing
