// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::backends {

// A host on the network.
struct PeerHost {
  std::string name;                    // gethostname(2)
  std::vector<std::string> addresses;  // numeric, of its interfaces except the loopback

  static PeerHost own();
  // One line each. For other ranks.
  std::string text() const;
  static PeerHost from_text(const std::string& text);
};

// What the kernel knows about this process's TCP connections to these hosts, one sentence each: whether
// packets are acknowledged, and for how long nothing has come. Empty without connections. Sends nothing.
std::string describe_connections(const std::vector<PeerHost>& hosts);

}  // namespace lockstep::backends
