// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

namespace lockstep::rendezvous {

// A parsed InitOptions::init_method.
struct InitMethod {
  enum class Kind { none, env, tcp, file };
  Kind kind = Kind::none;
  std::string host = {};                         // tcp
  int port = 0;                                  // tcp
  std::string path = {};                         // file
  std::optional<int> rank = std::nullopt;        // from the query
  std::optional<int> world_size = std::nullopt;  // from the query
};

// Throws ArgumentError, which quotes the method.
InitMethod parse_init_method(const std::string& text);

}  // namespace lockstep::rendezvous
