// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <netdb.h>
#include <string>
#include <sys/socket.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/options.h>

namespace lockstep::launch {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// A name that nobody knows, maybe not yet.
class UnknownHost : public LaunchError {
 public:
  using LaunchError::LaunchError;
};

/// TCP addresses of `endpoint`, one at least. Throws UnknownHost.
AddressList resolve(const Endpoint& endpoint);

/// Whether one of the addresses is this machine's own; not when the name is not known.
bool is_local(const Endpoint& endpoint);

/// The address at this side of a connection, as text.
std::string own_address(int socket);

/// "host:port", with brackets around an IPv6 address.
std::string to_text(const Endpoint& endpoint);

}  // namespace lockstep::launch
