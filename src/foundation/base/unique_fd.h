// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace lockstep {

// Owns one file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// The two ends of a pipe, which a program that is started does not inherit. `flags`: of pipe2(2). Both are empty, with
// the reason in errno, if there is none.
struct Pipe {
  UniqueFd read{};
  UniqueFd write{};
};
inline Pipe make_pipe(int flags = 0) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | flags) != 0) return {};
  return {.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
}

}  // namespace lockstep
