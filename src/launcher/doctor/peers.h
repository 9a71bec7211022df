// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/sockets.h"
#include "doctor/facts.h"

namespace lockstep::doctor {

// The addresses of a host name or an address in text. Waits no longer than the deadline, which the resolver
// itself does not know. Throws Error.
std::vector<SocketAddress> resolve(const std::string& name, const Deadline& deadline);

// Sockets that do not block, listening (port 0: a free one) and connected. Throw Error.
UniqueFd listen_at(const SocketAddress& address);
UniqueFd connected_socket(const SocketAddress& address, const Deadline& deadline);

// A test of the connections between several hosts.
struct ConnectivityTest {
  std::string token{};               // unique; letters and digits
  std::size_t self = 0;              // index of this host
  int port = 0;                      // on which each host listens
  std::vector<std::string> hosts{};  // addresses of the hosts
};

// To and from one word of a command line. Throws ArgumentError.
std::string to_text(const ConnectivityTest& test);
ConnectivityTest parse_connectivity_test(const std::string& text);

// The result for one other host.
struct Peer {
  std::string host{};
  std::string error{};             // empty if it was reached
  std::optional<double> offset{};  // seconds by which its clock is ahead of this host's
  double uncertainty = 0;          // error of `offset`, in seconds
};

// Listens, and connects to each other host repeatedly, until every pair has connected or the time is over,
// plus at most one attempt. Returns the other hosts in the order of ConnectivityTest::hosts. A host whose
// name is a loopback address listens only there, so that tests can run several on one machine. Throws Error
// when this host cannot listen.
std::vector<Peer> test_connectivity(const ConnectivityTest& test, std::chrono::milliseconds timeout);

// One finding per peer.
Findings check_peers(const std::vector<Peer>& peers, int port);

}  // namespace lockstep::doctor
