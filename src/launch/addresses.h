// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <netdb.h>
#include <string>
#include <sys/socket.h>

#include <lockstep/base/error.h>

#include "launch/options.h"

namespace lockstep::launch {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// The host name does not resolve, perhaps not yet.
class UnknownHost : public LaunchError {
 public:
  using LaunchError::LaunchError;
};

// TCP addresses of `endpoint`, at least one. Throws UnknownHost.
AddressList resolve(const Endpoint& endpoint);

// Whether one of the addresses belongs to this machine; false for an unknown name.
bool is_local(const Endpoint& endpoint);

// The local address of a connection.
std::string own_address(int socket);

// "host:port", with brackets around an IPv6 address.
std::string to_text(const Endpoint& endpoint);

}  // namespace lockstep::launch
