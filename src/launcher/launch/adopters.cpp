// SPDX-License-Identifier: BSD-3-Clause
#include "launch/adopters.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/limits.h"
#include "base/sockets.h"
#include "base/throw_error.h"
#include "launch/guard.h"
#include "launch/launch_limits.h"
#include "launch/process_tree.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// For adopters that have heard of the end of the run.
constexpr milliseconds kQuietEnd{2'000};
constexpr milliseconds kAdoptersEnd{10'000};
// Output of an adopter that waits for a slow reader; then the adopter waits, too.
constexpr std::size_t kMostRest = std::size_t{1} << 20;
// PIPE_BUF: a pipe that takes anything takes so much without a wait.
constexpr std::size_t kPiece = 4096;

// LOCKSTEP_HOST_ID for ranks with this memory_identity().
std::string host_id_of(const std::string& memory) {
  constexpr std::string_view named = "LOCKSTEP_HOST_ID=";
  return memory.starts_with(named) ? memory.substr(named.size()) : memory;
}

// Whether a write of at most kPiece bytes does not wait.
bool can_write(int fd) {
  pollfd stream{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&stream, 1, 0) > 0;
}

// Whole lines if possible.
std::string_view piece_of(std::string_view text) {
  const auto piece = text.substr(0, kPiece);
  const auto lines = piece.rfind('\n') + 1;  // npos + 1 is 0
  return lines > 0 ? piece.substr(0, lines) : piece;
}

// ECHILD: another thread has reaped it, which does so when it kills all descendants.
bool has_ended(pid_t pid, int& status) {
  const auto ended = ::waitpid(pid, &status, WNOHANG);
  return ended == pid || (ended < 0 && errno == ECHILD);
}

void end_child(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

Adopters::Adopters(const LaunchOptions& options) : options_(options) {
  ::getrlimit(RLIMIT_NOFILE, &descriptors_);
  auto pipe = make_pipe(O_NONBLOCK);
  if (!pipe.read)
    throw_error<LaunchError>("the ranks could not be started: {}", call_error_text("pipe2", errno));
  orders_out_ = std::move(pipe.read);
  orders_in_ = std::move(pipe.write);
}

Adopters::~Adopters() { signal_all(SIGKILL); }

bool Adopters::Stream::is_full() const { return rest.size() >= kMostRest; }

std::size_t Adopters::Stream::ready() const {
  return from && !is_full() ? rest.rfind('\n') + 1 : rest.size();  // npos + 1 is 0
}

void Adopters::serve(int stop) {
  // As in supervise(). start_program() gives adopters the defaults.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  pollfd end{.fd = stop, .events = POLLIN, .revents = 0};
  while (::poll(&end, 1, 0) <= 0) {
    step(stop, -1);
    read_orders();
    take_ended(false);
  }
  wait_for_all(kQuietEnd);
  signal_all(SIGTERM);
  wait_for_all(options_.grace_period + kAdoptersEnd);
  signal_all(SIGKILL);
  wait_for_all(kKillLimit);
}

void Adopters::wait_for_all(milliseconds limit) {
  const Deadline deadline(limit);
  while (!adopters_.empty() && !deadline.expired()) {
    step(-1, static_cast<int>(deadline.remaining().count()) + 1);
    take_ended(true);
  }
  // Those that have ended, but whose output nobody reads.
  std::erase_if(adopters_, [](const Adopter& adopter) { return !adopter.life; });
}

void Adopters::step(int stop, int limit_ms) {
  std::vector<pollfd> events;
  const auto watch = [&](int fd, short what = POLLIN) {
    events.push_back({.fd = fd, .events = what, .revents = 0});
  };
  watch(stop);
  watch(stop < 0 ? -1 : orders_out_.get());
  for (const auto& each : adopters_) {
    watch(each.life.get());
    for (const auto* stream : {&each.out, &each.err}) {
      if (!stream->is_full()) watch(stream->from.get());
      if (stream->ready() > 0) watch(stream->to, POLLOUT);
    }
  }
  ::poll(events.data(), events.size(), limit_ms);
  for (auto& each : adopters_) {
    pass_on(each.out, false);
    pass_on(each.err, false);
  }
}

void Adopters::read_orders() {
  std::array<char, 4096> bytes;
  for (;;) {
    const auto count = ::read(orders_out_.get(), bytes.data(), bytes.size());
    if (count <= 0) break;
    orders_.append(bytes.data(), static_cast<std::size_t>(count));
  }
  for (auto end = orders_.find('\n'); end != std::string::npos; end = orders_.find('\n')) {
    const auto message = decode_to_node(orders_.substr(0, end));
    orders_.erase(0, end + 1);
    if (const auto* const adopt = std::get_if<Adopt>(&message)) start(adopt->node);
  }
}

// The coordinator ends the run if no adopter joins it.
void Adopters::start(const AdoptedNode& node) {
  auto words = options_.words;
  words.insert(words.begin() + 2, {"--adopt", adopt_text(node)});
  try {
    auto program = machine::start_program(
        {.file = words.front(),
         .arguments = words,
         .environment = {{"LOCKSTEP_HOST_ID", host_id_of(node.memory)}, {"OMP_NUM_THREADS", ""}}},
        Deadline(kExecLimit));
    try {
      if (program.error != 0) throw_error<LaunchError>("{}: {}", words.front(), errno_text(program.error));
      ::prlimit(program.pid, RLIMIT_NOFILE, &descriptors_, nullptr);
      for (const int fd : {program.out.get(), program.err.get()})
        ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
      adopters_.push_back({.node_rank = node.node_rank,
                           .pid = program.pid,
                           .life = open_pidfd(program.pid),
                           .out = {.from = std::move(program.out), .to = STDOUT_FILENO},
                           .err = {.from = std::move(program.err), .to = STDERR_FILENO}});
    } catch (...) {
      end_child(program.pid);
      throw;
    }
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("no launcher could be started in the place of node {}: {}",
                                     node.node_rank, exception_text(error)));
  }
}

// `is_last`: nothing more comes than what is there.
void Adopters::pass_on(Stream& stream, bool is_last) {
  std::array<char, 64 * 1024> bytes;
  while (stream.from && !stream.is_full()) {
    const auto count = ::read(stream.from.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN && !is_last) break;
    if (count <= 0) {
      stream.from.reset();
      break;
    }
    stream.rest.append(bytes.data(), static_cast<std::size_t>(count));
    write_ready(stream);
  }
  write_ready(stream);
}

// What the reader does not take now follows later.
void Adopters::write_ready(Stream& stream) {
  const auto text = std::string_view(stream.rest).substr(0, stream.ready());
  std::size_t done = 0;
  while (done < text.size() && can_write(stream.to)) {
    const auto piece = piece_of(text.substr(done));
    const auto count = ::write(stream.to, piece.data(), piece.size());
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      if (errno == EPIPE) stream.to = -1;
      done = text.size();
    }
  }
  stream.rest.erase(0, stream.to < 0 ? std::string::npos : done);
}

void Adopters::take_ended(bool is_stopping) {
  std::erase_if(adopters_, [&](Adopter& adopter) {
    int status = 0;
    if (adopter.life && !has_ended(adopter.pid, status)) return false;
    adopter.life.reset();
    pass_on(adopter.out, true);
    pass_on(adopter.err, true);
    if (!is_stopping && status != 0) {
      log(LogLevel::warning,
          fmt::format("the launcher that was started in the place of node {} has ended: {}",
                      adopter.node_rank,
                      WIFSIGNALED(status) ? "it was killed by " + signal_name(WTERMSIG(status))
                                          : fmt::format("it exited with code {}", WEXITSTATUS(status))));
    }
    const auto is_done = [](const Stream& stream) { return !stream.from && stream.rest.empty(); };
    return is_done(adopter.out) && is_done(adopter.err);
  });
}

void Adopters::signal_all(int signal) const {
  for (const auto& each : adopters_) {
    if (each.life) ::syscall(SYS_pidfd_send_signal, each.life.get(), signal, nullptr, 0);
  }
}

}  // namespace lockstep::launch
