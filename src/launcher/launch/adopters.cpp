// SPDX-License-Identifier: BSD-3-Clause
#include "launch/adopters.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
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

// LOCKSTEP_HOST_ID for ranks with this memory_identity().
std::string host_id_of(const std::string& memory) {
  constexpr std::string_view named = "LOCKSTEP_HOST_ID=";
  return memory.starts_with(named) ? memory.substr(named.size()) : memory;
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;  // nobody reads
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
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

void Adopters::serve(int stop) {
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
}

void Adopters::step(int stop, int limit_ms) {
  std::vector<pollfd> events;
  const auto watch = [&](int fd) { events.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  watch(stop);
  watch(stop < 0 ? -1 : orders_out_.get());
  for (const auto& each : adopters_) {
    for (const int fd : {each.life.get(), each.out.from.get(), each.err.from.get()}) watch(fd);
  }
  ::poll(events.data(), events.size(), limit_ms);
  for (auto& each : adopters_) {
    pass_on(each.out);
    pass_on(each.err);
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
    if (program.error != 0) {
      ::waitpid(program.pid, nullptr, 0);
      throw_error<LaunchError>("{}: {}", words.front(), errno_text(program.error));
    }
    ::prlimit(program.pid, RLIMIT_NOFILE, &descriptors_, nullptr);
    for (const int fd : {program.out.get(), program.err.get()})
      ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    adopters_.push_back({.node_rank = node.node_rank,
                         .pid = program.pid,
                         .life = open_pidfd(program.pid),
                         .out = {.from = std::move(program.out), .to = STDOUT_FILENO},
                         .err = {.from = std::move(program.err), .to = STDERR_FILENO}});
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("no launcher could be started in the place of node {}: {}",
                                     node.node_rank, exception_text(error)));
  }
}

void Adopters::pass_on(Stream& stream) {
  std::array<char, 64 * 1024> bytes;
  while (stream.from) {
    const auto count = ::read(stream.from.get(), bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (count <= 0) {
      stream.from.reset();
      break;
    }
    stream.rest.append(bytes.data(), static_cast<std::size_t>(count));
  }
  const auto end = stream.from ? stream.rest.rfind('\n') + 1 : stream.rest.size();  // npos + 1 is 0
  write_all(stream.to, std::string_view(stream.rest).substr(0, end));
  stream.rest.erase(0, end);
}

void Adopters::take_ended(bool is_stopping) {
  std::erase_if(adopters_, [&](Adopter& adopter) {
    int status = 0;
    if (::waitpid(adopter.pid, &status, WNOHANG) != adopter.pid) return false;
    pass_on(adopter.out);
    pass_on(adopter.err);
    if (!is_stopping && status != 0) {
      log(LogLevel::warning,
          fmt::format("the launcher that was started in the place of node {} has ended: {}",
                      adopter.node_rank,
                      WIFSIGNALED(status) ? "it was killed by " + signal_name(WTERMSIG(status))
                                          : fmt::format("it exited with code {}", WEXITSTATUS(status))));
    }
    return true;
  });
}

void Adopters::signal_all(int signal) const {
  for (const auto& each : adopters_) ::kill(each.pid, signal);
}

}  // namespace lockstep::launch
