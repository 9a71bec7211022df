// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/base/deadline.h>
#include <lockstep/base/unique_fd.h>
#include <lockstep/comm/c10d.h>

namespace lockstep::rendezvous {

struct Endpoint {
  std::string host;
  int port = 0;
};

// A listening socket on every address of this host, or every IPv4 address when `host`, by which it will be
// reached, is one; port 0 for any. Throws RendezvousError when the port is taken.
//
// c10d's store asks for the name of each client's address, one after the other. As IPv4 addresses those of
// this host are in /etc/hosts; in the guise of IPv6 addresses they are questions for a name server.
struct Listener {
  UniqueFd socket;
  int port = 0;
};
Listener listen_on(int port, const std::string& host);

// The store of a run: rank 0 serves it on `listener`, the others come to it. Ranks that come before rank 0
// wait for it; throws RendezvousError when it is not there by the deadline.
c10::intrusive_ptr<c10d::Store> serve_store(Listener listener, const std::string& host, int world_size,
                                            const Deadline& deadline);
c10::intrusive_ptr<c10d::Store> join_store(const Endpoint& server, int rank, int world_size,
                                           const Deadline& deadline);

}  // namespace lockstep::rendezvous
