// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/spare.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <unistd.h>

#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "launch/spare.h"

namespace lockstep::rendezvous {
namespace {

// Up to the end of the line, or of the pipe.
std::string read_line(int fd) {
  std::string line;
  for (char byte = 0;;) {
    const auto got = ::read(fd, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1 || byte == '\n') return line;
    line += byte;
  }
}

}  // namespace

void become_rank(const Env& env) {
  const auto number = env.get_int(launch::Spare::kVariable);
  if (!number) return;
  const UniqueFd pipe(static_cast<int>(*number));
  const auto line = read_line(pipe.get());
  if (line.empty()) {
    std::fflush(nullptr);
    ::_exit(0);
  }
  std::istringstream words(line);
  ::unsetenv(launch::Spare::kVariable);
  for (const auto* variable : {"RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"}) {
    std::string value;
    if (!(words >> value)) {
      throw_error<RendezvousError>(
          "the launcher tells this spare process \"{}\" instead of a rank; use the `lockstep` command of the version "
          "that the program links",
          line);
    }
    ::setenv(variable, value.c_str(), 1);
  }
  ::setenv("ROLE_RANK", std::getenv("RANK"), 1);  // all ranks have one role
}

}  // namespace lockstep::rendezvous
