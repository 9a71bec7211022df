// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep {

// Local sockets over which processes of one host and user pass file descriptors. Their names are in the
// abstract namespace of unix(7), so no file can stay behind.

struct LocalListener {
  UniqueFd socket;
  std::string name;  // chosen by the kernel
};

// Throws Error when the system refuses.
LocalListener listen_locally();

// The next connection, or an empty one when the deadline has passed. A process that does not run as
// `user` is rejected with a warning.
UniqueFd accept_local(const LocalListener& listener, const Deadline& deadline, uid_t user = ::geteuid());

// Throws Error when nobody listens there, or a process that does not run as `user` does; TimeoutError when
// the deadline passes.
UniqueFd connect_locally(const std::string& name, const Deadline& deadline, uid_t user = ::geteuid());

// One message: a number and some descriptors, which stay open in this process too. Throws Error or
// TimeoutError.
void send_fds(int socket, std::uint32_t number, std::span<const int> fds, const Deadline& deadline);

struct FdMessage {
  std::uint32_t number = 0;
  std::vector<UniqueFd> fds;
};

// Throws PeerLost when the other side has closed, TimeoutError when the deadline passes.
FdMessage receive_fds(int socket, const Deadline& deadline);

}  // namespace lockstep
