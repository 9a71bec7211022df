// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <netdb.h>
#include <memory>
#include <string>
#include <sys/socket.h>

#include <lockstep/launch/options.h>

namespace lockstep::launch {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// TCP addresses of `endpoint`. Throws LaunchError when its name is not known.
AddressList resolve(const Endpoint& endpoint);

/// Whether one of the addresses is this machine's own.
bool is_local(const Endpoint& endpoint);

/// The address at this side of a connection, as text.
std::string own_address(int socket);

/// "host:port", with brackets around an IPv6 address.
std::string to_text(const Endpoint& endpoint);

}  // namespace lockstep::launch
