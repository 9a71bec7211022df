// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/env.h>

namespace lockstep::rendezvous {

// The environment variables of one launcher.
class Variables {
 public:
  // If one variable of `required` is set, all must be; `optional` ones are only listed in messages.
  Variables(const Env& env, std::string source, std::vector<std::string> required,
            std::vector<std::string> optional = {});

  bool any() const;
  // Throws RendezvousError listing the variables that are set, with values, and those that are missing.
  void require_all() const;
  // A required number that fits an int.
  int number(const std::string& name) const;
  std::optional<int> optional_number(const std::string& name) const;
  // "RANK=1, WORLD_SIZE=2"
  std::string seen() const;

 private:
  const Env& env_;
  std::string source_;
  std::vector<std::string> required_;
  std::vector<std::string> optional_;
};

// Throws RendezvousError unless the port is in 1 .. 65535.
int checked_port(std::int64_t port, const std::string& name);

}  // namespace lockstep::rendezvous
