// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"

namespace lockstep::cli {

/// Several hosts that try to reach each other at the same time.
struct Meeting {
  std::string token{};               ///< of this meeting alone; letters and digits
  std::size_t self = 0;              ///< this host among them
  int port = 0;                      ///< where each of them listens
  std::vector<std::string> hosts{};  ///< as each of them can be reached
};

/// As one word of a command line, and back. Throws ArgumentError.
std::string meeting_text(const Meeting& meeting);
Meeting parse_meeting(const std::string& text);

/// What became of connecting to another host.
struct Peer {
  std::string host{};
  std::string error{};             ///< empty when it was reached
  std::optional<double> offset{};  ///< seconds that its clock is ahead of this one's
  double uncertainty = 0;          ///< seconds by which `offset` may be wrong
};

/// Listens for the others and connects to each of them, again and again, until all have met all or the time
/// is over, and at most one attempt longer. Returns the others in the order of Meeting::hosts. A host whose
/// name is a loopback address listens at that address only, so that several can stand for one machine. Throws
/// Error when this host cannot listen.
std::vector<Peer> meet(const Meeting& meeting, std::chrono::milliseconds timeout);

/// One for each.
Findings check_peers(const std::vector<Peer>& peers, int port);

}  // namespace lockstep::cli
