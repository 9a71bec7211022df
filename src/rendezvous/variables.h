// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/env.h>

namespace lockstep::rendezvous {

// Names that a source needs or may use, and which of them are there.
class Variables {
 public:
  // Everything in `required` must be set once anything in it is; `optional` is only listed.
  Variables(const Env& env, std::string source, std::vector<std::string> required,
            std::vector<std::string> optional = {});

  bool any() const;
  // Throws RendezvousError that lists what was seen, with values, and what is missing.
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

// MASTER_PORT and its like: 1 .. 65535, or RendezvousError.
int checked_port(std::int64_t port, const std::string& name);

}  // namespace lockstep::rendezvous
