// SPDX-License-Identifier: BSD-3-Clause
#include "launch/log_multiplexer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/env.h"

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

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

bool readable(int fd) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&event, 1, 0) > 0;
}

}  // namespace

std::string rank_prefix(const std::string& text, int rank, int fd) {
  if (!wants_colour(fd)) return text;
  constexpr std::array colours{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  const auto end = text.find_last_not_of(' ') + 1;
  return fmt::format("\x1b[{}m{}\x1b[0m{}", colours[static_cast<std::size_t>(rank) % colours.size()],
                     text.substr(0, end), text.substr(end));
}

LogMultiplexer::LogMultiplexer()
    : out_(STDOUT_FILENO), err_(STDERR_FILENO), shared_(same_file(STDOUT_FILENO, STDERR_FILENO)) {}

void LogMultiplexer::add_rank(int rank, RankStream out, RankStream err) {
  tails_[rank] = {};
  shows_stderr_.erase(rank);
  if (err.passed_on) shows_stderr_.insert(rank);
  add_stream({.rank = rank, .of_rank = std::move(out), .queue = &out_, .filtered = &filtered_out_});
  add_stream({.rank = rank,
              .of_rank = std::move(err),
              .queue = &error_queue(),
              .filtered = &filtered_err_,
              .tail = &tails_[rank]});
}

void LogMultiplexer::replace_rank(int rank, UniqueFd out, UniqueFd err) {
  for (auto& stream : streams_) {
    if (stream.rank != rank) continue;
    take_all(stream);
    if (stream.of_rank.pipe) end(stream);
    stream.splitter = {};
    stream.of_rank.pipe = std::move(stream.tail != nullptr ? err : out);
    make_nonblocking(stream.of_rank.pipe.get());
  }
  tails_[rank] = {};
}

void LogMultiplexer::add_stream(Stream stream) {
  make_nonblocking(stream.of_rank.pipe.get());
  streams_.push_back(std::move(stream));
}

void LogMultiplexer::set_filters(FilteredLog out, FilteredLog err) {
  filtered_out_ = std::move(out);
  filtered_err_ = std::move(err);
}

void LogMultiplexer::print(std::string_view message) {
  error_queue().push(fmt::format("[lockstep] {}\n", message));
}

void LogMultiplexer::watch(std::vector<pollfd>& events) const {
  for (const auto& stream : streams_) {
    const UniqueFd& pipe = stream.of_rank.pipe;
    if (pipe && !stream.queue->full()) events.push_back({.fd = pipe.get(), .events = POLLIN, .revents = 0});
  }
  // Only with lines to write: an output without a reader is always ready.
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
    if (stream.of_rank.pipe && stream.of_rank.pipe.get() == event.fd) take(stream);
  }
}

void LogMultiplexer::drain(int rank) {
  for (auto& stream : streams_) {
    if (stream.rank == rank) take_all(stream);
  }
}

void LogMultiplexer::finish() {
  for (auto& stream : streams_) {
    take_all(stream);
    if (stream.of_rank.pipe) end(stream);
  }
  streams_.clear();
}

// Bounded: a process outside the run may hold the pipe and write to it forever.
void LogMultiplexer::take_all(Stream& stream) {
  constexpr int most_reads = 64;
  const UniqueFd& pipe = stream.of_rank.pipe;
  for (int reads = 0; pipe && reads < most_reads && readable(pipe.get()); ++reads) take(stream);
}

void LogMultiplexer::take(Stream& stream) {
  std::array<char, 64 * 1024> buffer;
  const ssize_t count = ::read(stream.of_rank.pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    end(stream);
    return;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
  write_to_file(stream.of_rank.copy, bytes);
  stream.splitter.feed(bytes, LineSplitter::Clock::now(), [&](std::string_view line) { emit(stream, line); });
}

void LogMultiplexer::end(Stream& stream) {
  stream.of_rank.pipe.reset();
  stream.splitter.finish([&](std::string_view line) { emit(stream, line); });
}

namespace {

// "[lockstep rank 1] text" without the rank, which stands before it.
std::string without_rank(int rank, std::string_view line) {
  const auto own = fmt::format("[lockstep rank {}] ", rank);
  return line.starts_with(own) ? fmt::format("[lockstep] {}", line.substr(own.size())) : std::string(line);
}

}  // namespace

void LogMultiplexer::emit(const Stream& stream, std::string_view line) {
  if (stream.of_rank.takes && stream.of_rank.takes(line)) return;
  if (stream.tail != nullptr) stream.tail->add(line);
  const bool duplicated = std::ranges::any_of(stream.filtered->texts, [&](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
  if (!stream.of_rank.passed_on && !duplicated) return;
  if (stream.of_rank.passed_on) pass_on(stream, line);
  if (duplicated)
    write_to_file(stream.filtered->file,
                  fmt::format("[rank {}] {}\n", stream.rank, without_rank(stream.rank, line)));
}

void LogMultiplexer::pass_on(const Stream& stream, std::string_view line) {
  const auto& of_rank = stream.of_rank;
  stream.queue->push(
      fmt::format("{}{}\n", of_rank.prefix,
                  of_rank.prefix_names_rank ? without_rank(stream.rank, line) : std::string(line)));
}

// Writing to a file does not wait for a reader.
void LogMultiplexer::write_to_file(const UniqueFd& file, std::string_view text) {
  while (file && !text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (file_error_ == 0) file_error_ = errno;
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void LineSplitter::feed(std::string_view bytes, Clock::time_point now, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t length = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (length > 0) {
      append(bytes.substr(0, length), now, sink);
      bytes.remove_prefix(length);
      continue;
    }
    if (bytes.front() == '\n') {
      end_line(sink);
    } else {
      returned_ = true;
    }
    bytes.remove_prefix(1);
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!line_.empty()) end_line(sink);
}

void LineSplitter::append(std::string_view text, Clock::time_point now, const Sink& sink) {
  if (returned_) redraw(now, sink);
  while (line_.size() + text.size() > options_.max_line) {
    const std::size_t room = options_.max_line - line_.size();
    line_ += text.substr(0, room);
    text.remove_prefix(room);
    sink(line_);
    line_.clear();
    continued_ = true;
  }
  line_ += text;
}

void LineSplitter::redraw(Clock::time_point now, const Sink& sink) {
  returned_ = false;
  if (line_.empty()) return;
  if (!last_redraw_ || now - *last_redraw_ >= options_.redraw_interval) {
    last_redraw_ = now;
    sink(line_);
  }
  line_.clear();
}

void LineSplitter::end_line(const Sink& sink) {
  // A long line may end exactly at the end of a piece.
  if (!line_.empty() || !continued_) sink(line_);
  line_.clear();
  returned_ = false;
  continued_ = false;
  last_redraw_.reset();
}

namespace {

// A stopped terminal (Ctrl-S, a dead connection) polls as writable, but blocks. Empty for files, and for
// terminals of other users, which cannot be opened.
UniqueFd opened_for_this_process(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || !(S_ISFIFO(file.st_mode) || ::isatty(fd) == 1)) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

OutputQueue::OutputQueue(int fd) : own_(opened_for_this_process(fd)), fd_(own_ ? own_.get() : fd) {}

std::size_t OutputQueue::next_piece() const {
  const std::size_t most = std::min<std::size_t>(PIPE_BUF, buffer_.size() - written_);
  const auto end = std::string_view(buffer_).substr(written_, most).rfind('\n');
  return end == std::string_view::npos ? most : end + 1;
}

void OutputQueue::write_some() {
  const std::size_t size = next_piece();
  const ssize_t count = ::write(fd_, buffer_.data() + written_, size);
  if (count < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    error_ = errno;
    buffer_.clear();
    written_ = 0;
    return;
  }
  written_ += static_cast<std::size_t>(count);
  // Moving the rest is cheap when it happens once in many writes.
  if (written_ == buffer_.size() || written_ > kFull) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace lockstep::launch
