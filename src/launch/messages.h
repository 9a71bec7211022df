// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "launch/coordinator.h"

namespace lockstep::launch {

// The first message of a launcher.
struct Hello {
  std::string run_id{};
  NodeInfo node{};
};

// One message is one line of JSON, without its newline. decode_... throw LaunchError for a malformed line and
// for another version of Lockstep.

std::string encode(const Hello& hello);
Hello decode_hello(const std::string& line);

std::string encode(const FromNode& message);
FromNode decode_from_node(const std::string& line);

std::string encode(const ToNode& message);
ToNode decode_to_node(const std::string& line);

}  // namespace lockstep::launch
