// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/comm/backend.h>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::rendezvous {

struct Endpoint {
  std::string host;
  int port = 0;
};

// A listening socket on all addresses of this host, or all IPv4 addresses if `host`, the address for the
// other ranks, is one. Port 0: any free port. Throws RendezvousError if the port is in use.
//
// c10d's store looks up the name of each client's address, one after the other. IPv4 addresses of this host
// are in /etc/hosts; as IPv4-mapped IPv6 addresses they would be sent to a name server.
struct Listener {
  UniqueFd socket;
  int port = 0;
};
Listener listen_on(int port, const std::string& host);

// The store of a run: rank 0 serves it on `listener`, the others connect. They wait for rank 0 to listen, and
// throw RendezvousError at the deadline. Rank 0 raises its soft limit of file descriptors to the hard one if
// it has too few for `world_size` connections, and throws RendezvousError if that is not enough.
// `is_counted`: the server counts this rank; PyTorch's waits for all of them.
c10::intrusive_ptr<c10d::Store> serve_store(Listener listener, const std::string& host, int world_size,
                                            const Deadline& deadline);
c10::intrusive_ptr<c10d::Store> join_store(const Endpoint& server, int rank, int world_size,
                                           const Deadline& deadline, bool is_counted = false);

// The first line of what a server that is no store answers to an HTTP request, e.g. "SSH-2.0-OpenSSH_9.2".
// Empty if it answers nothing within half a second: a store does not answer to such a request.
std::string answer_of_foreign_server(const Endpoint& server);

// While one lives, LibTorch's own log is silent: c10d's store logs each broken connection with a stack trace
// of up to 32 lines, which our errors name in one. LibTorch has one level for the process, so its warnings to
// other threads are lost too. Does nothing if LOCKSTEP_LOG_LEVEL is debug or TORCH_CPP_LOG_LEVEL is set. Safe
// from any thread.
class QuietC10d {
 public:
  QuietC10d();
  ~QuietC10d();
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  bool is_on_;
};

}  // namespace lockstep::rendezvous
