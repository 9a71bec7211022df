// SPDX-License-Identifier: BSD-3-Clause
#include <unistd.h>

#include <lockstep/base/unique_fd.h>

namespace lockstep {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace lockstep
