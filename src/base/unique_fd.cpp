// SPDX-License-Identifier: BSD-3-Clause
#include "base/unique_fd.h"

#include <unistd.h>

namespace lockstep {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace lockstep
