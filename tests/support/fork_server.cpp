// SPDX-License-Identifier: BSD-3-Clause
#include "support/fork_server.h"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/sockets.h"

namespace lockstep::testing {
namespace {

constexpr std::chrono::hours kForever{24};
constexpr std::chrono::minutes kAnswerTime{2};  // for the import of PyTorch on a busy machine

UniqueFd handle_of(int pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

// Only O_APPEND keeps apart what several processes write to one open file: a memfd has no lock for its file
// offset.
UniqueFd memory_file() {
  UniqueFd file(::memfd_create("lockstep-test", MFD_CLOEXEC));
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
  text.resize(size);
  return text;
}

UniqueFd file_of(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text.append(word).push_back('\0');
  auto file = memory_file();
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("a request cannot be written");
  return file;
}

std::vector<std::string> words_in(int fd) {
  std::vector<std::string> words;
  const auto text = contents(fd);
  for (std::size_t start = 0, end = 0; (end = text.find('\0', start)) != std::string::npos; start = end + 1)
    words.push_back(text.substr(start, end - start));
  return words;
}

constexpr int kNoStatus = 0xff00;  // as of a process that exits with 255

int wait_status(int pid) {
  int status = kNoStatus;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

void answer(int socket, int number) { ::send(socket, &number, sizeof(number), MSG_NOSIGNAL); }

}  // namespace

ForkServer::ForkServer(const std::function<void(int socket)>& become) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("socketpair failed");
  socket_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  ::setpgid(pid_, pid_);  // in both processes; to end with the server: what children have forked
  if (pid_ > 0) return;
  ::fcntl(theirs.get(), F_SETFD, 0);
  become(theirs.get());
  ::_exit(127);
}

ForkServer::~ForkServer() {
  ::kill(-pid_, SIGKILL);
  wait_status(pid_);
}

int ForkServer::request(int number, std::vector<int> fds) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline(kAnswerTime);
  int result = 0;
  send_fds(socket_.get(), static_cast<std::uint32_t>(number), fds, deadline);
  if (!wait_for(socket_.get(), POLLIN, deadline) ||
      ::recv(socket_.get(), &result, sizeof(result), 0) != sizeof(result))
    throw std::runtime_error("the server of forked processes has ended or hangs; see stderr");
  return result;
}

// The answer of a request for what is no child of it.
void ForkServer::wait_until_ready() { request(pid_, {}); }

Child ForkServer::start(const std::vector<std::string>& words) {
  Child child{.out = memory_file(), .err = memory_file()};
  const auto file = file_of(words);
  child.pid = request(0, {file.get(), child.out.get(), child.err.get()});
  if (child.pid < 0) throw std::runtime_error("the server cannot fork");
  child.handle = handle_of(child.pid);
  return child;
}

ChildResult ForkServer::finish(const Child& child, const Deadline& deadline) {
  ChildResult result;
  if (!wait_for(child.handle.get(), POLLIN, deadline)) {
    result.timed_out = true;
    ::kill(child.pid, SIGKILL);
  }
  result.status = request(child.pid, {});
  result.out = contents(child.out.get());
  result.err = contents(child.err.get());
  return result;
}

std::vector<std::string> serve_forks(int socket) {
  const int server = ::getpid();
  while (true) {
    FdMessage message;
    try {
      message = receive_fds(socket, Deadline(kForever));
    } catch (const Error&) {
      ::_exit(0);  // the test process has ended
    }
    if (message.fds.empty()) {
      answer(socket, wait_status(static_cast<int>(message.number)));
      continue;
    }
    const int pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != server) ::_exit(127);
      ::close(socket);
      ::dup2(message.fds[1].get(), STDOUT_FILENO);
      ::dup2(message.fds[2].get(), STDERR_FILENO);
      return words_in(message.fds[0].get());
    }
    answer(socket, pid);
  }
}

}  // namespace lockstep::testing
