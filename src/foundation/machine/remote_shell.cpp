// SPDX-License-Identifier: BSD-3-Clause
#include "machine/remote_shell.h"

#include <iterator>
#include <sstream>

namespace lockstep::machine {

// A connection that ssh would keep for later calls would outlive the run.
std::vector<std::string> remote_shell(const std::string& command) {
  std::istringstream stream(command.empty() ? "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ControlMaster=no "
                                              "-o ServerAliveInterval=5 -o ServerAliveCountMax=3"
                                            : command);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char character : word) {
    text += character == '\'' ? std::string("'\\''") : std::string(1, character);
  }
  return text + "'";
}

std::string address_part(const std::string& host) { return host.substr(host.rfind('@') + 1); }

}  // namespace lockstep::machine
