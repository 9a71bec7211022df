// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::machine {

// The words of `command`, which runs its last argument on the host that the argument before names. Empty:
// ssh without prompts, which notices within 15 s that a host is silent.
std::vector<std::string> remote_shell(const std::string& command);

// `word` for a POSIX shell.
std::string quoted(const std::string& word);

// The address of a host for other hosts: without the user, as in user@host.
std::string address_part(const std::string& host);

}  // namespace lockstep::machine
