// SPDX-License-Identifier: BSD-3-Clause
#include "launch/log_multiplexer.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/env.h>

namespace lockstep::launch {
namespace {

bool same_file(int one, int other) {
  struct stat a {};
  struct stat b {};
  if (::fstat(one, &a) != 0 || ::fstat(other, &b) != 0) return false;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// https://no-color.org: set to anything but the empty string.
bool wants_colour(int fd) {
  const Env env;
  return ::isatty(fd) == 1 && !env.has("NO_COLOR") && env.get("TERM").value_or("dumb") != "dumb";
}

std::string prefix_of(int rank, int fd) {
  if (!wants_colour(fd)) return fmt::format("[rank {}] ", rank);
  constexpr std::array colours{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  return fmt::format("\x1b[{}m[rank {}]\x1b[0m ", colours[static_cast<std::size_t>(rank) % colours.size()],
                     rank);
}

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

bool readable(int fd) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) > 0;
}

}  // namespace

LogMultiplexer::LogMultiplexer(bool mark_stdout)
    : out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      mark_stdout_(mark_stdout),
      shared_(same_file(STDOUT_FILENO, STDERR_FILENO)) {}

void LogMultiplexer::add_rank(int rank, UniqueFd out, UniqueFd err) {
  make_nonblocking(out.get());
  make_nonblocking(err.get());
  streams_.push_back(
      {.fd = std::move(out), .prefix = mark_stdout_ ? prefix_of(rank, STDOUT_FILENO) : "", .queue = &out_});
  streams_.push_back({.fd = std::move(err),
                      .prefix = prefix_of(rank, STDERR_FILENO),
                      .queue = &error_queue(),
                      .tail = &tails_[rank]});
}

void LogMultiplexer::say(std::string_view message) {
  error_queue().push(fmt::format("[lockstep] {}\n", message));
}

void LogMultiplexer::watch(std::vector<pollfd>& events) const {
  for (const auto& stream : streams_) {
    if (stream.fd && !stream.queue->full())
      events.push_back({.fd = stream.fd.get(), .events = POLLIN, .revents = 0});
  }
  // Only while something waits: an output whose reader has gone is always ready.
  for (const OutputQueue* queue : {&out_, &err_}) {
    if (!queue->empty()) events.push_back({.fd = queue->fd(), .events = POLLOUT, .revents = 0});
  }
}

void LogMultiplexer::handle(const pollfd& event) {
  if (event.revents == 0) return;
  for (OutputQueue* queue : {&out_, &err_}) {
    if (queue->fd() == event.fd && !queue->empty()) queue->write_some();
  }
  for (auto& stream : streams_) {
    if (stream.fd && stream.fd.get() == event.fd) take(stream);
  }
}

void LogMultiplexer::finish() {
  // Open but silent, or never silent: held by a process that is none of ours. What ours wrote is in the pipe.
  constexpr int most_reads = 64;
  for (auto& stream : streams_) {
    for (int reads = 0; stream.fd && reads < most_reads && readable(stream.fd.get()); ++reads) take(stream);
    stream.fd.reset();
    stream.splitter.finish([&](std::string_view line) { emit(stream, line); });
  }
}

void LogMultiplexer::take(Stream& stream) {
  std::array<char, 64 * 1024> buffer;
  const ssize_t count = ::read(stream.fd.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    stream.fd.reset();
    stream.splitter.finish([&](std::string_view line) { emit(stream, line); });
    return;
  }
  stream.splitter.feed({buffer.data(), static_cast<std::size_t>(count)}, LineSplitter::Clock::now(),
                       [&](std::string_view line) { emit(stream, line); });
}

void LogMultiplexer::emit(const Stream& stream, std::string_view line) {
  if (stream.tail != nullptr) stream.tail->add(line);
  stream.queue->push(fmt::format("{}{}\n", stream.prefix, line));
}

}  // namespace lockstep::launch
