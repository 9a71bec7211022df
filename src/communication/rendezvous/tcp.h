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
// `with_python`: a server of PyTorch's waits until it has counted them.
c10::intrusive_ptr<c10d::Store> serve_store(Listener listener, const std::string& host, int world_size,
                                            const Deadline& deadline);
c10::intrusive_ptr<c10d::Store> join_store(const Endpoint& server, int rank, int world_size,
                                           const Deadline& deadline, bool with_python = false);

}  // namespace lockstep::rendezvous
