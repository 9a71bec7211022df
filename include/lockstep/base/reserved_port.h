// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <lockstep/base/unique_fd.h>

namespace lockstep {

/// Holds a free TCP port for a server that another process will start there.
///
/// The port is bound, not listened on, with address reuse allowed afterwards: a server that sets
/// SO_REUSEADDR (c10d's TCPStore does) can bind and listen on it, while nobody who asks the kernel for any
/// free port is given it, for as long as this object lives. So any number of launches can start at the same
/// time without clashing.
class ReservedPort {
 public:
  /// Throws LaunchError when no port can be had.
  ReservedPort();
  /// Holds this very port. Throws LaunchError naming it when another program listens there or it may not be
  /// used.
  explicit ReservedPort(std::uint16_t port);

  std::uint16_t port() const { return port_; }

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
};

}  // namespace lockstep
