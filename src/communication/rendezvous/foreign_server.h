// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "rendezvous/tcp.h"

namespace lockstep::rendezvous {

// The first line of what a server that is no store answers to an HTTP request, e.g. "SSH-2.0-OpenSSH_9.2".
// Empty if it answers nothing within half a second: a store does not answer to such a request.
std::string answer_of_foreign_server(const Endpoint& server);

}  // namespace lockstep::rendezvous
