// SPDX-License-Identifier: BSD-3-Clause
#include "base/unique_fd.h"

#include <array>
#include <fcntl.h>
#include <unistd.h>

namespace lockstep {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Pipe make_pipe(int flags) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | flags) != 0) return {};
  return {.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
}

}  // namespace lockstep
