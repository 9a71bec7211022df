// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::fsdp {

// The order in which the passes of a step use the groups of a tree, learned in one step for the next: which
// group a pass still needs, and which it needs next. Groups are numbers.
class UsePlan {
 public:
  enum Pass : std::uint8_t { forward, backward };

  void add_group() { uses_.emplace_back(); }
  // `learns`: the use is one of a step. Others, such as evaluation, teach nothing.
  void use(std::size_t group, bool learns);
  // What was used last in this pass.
  std::optional<std::size_t> current() const { return current_; }
  // Whether the last such pass used the group more often than this one so far.
  bool expects(std::size_t group, Pass pass) const { return uses_[group].now < uses_[group].last[pass]; }
  // What the last such pass used after the current use.
  std::optional<std::size_t> next(Pass pass) const;
  // The next such pass expects what this one has used.
  void end(Pass pass);

 private:
  struct Uses {
    int now = 0;  // in this pass
    std::array<int, 2> last{};
  };

  std::vector<Uses> uses_;
  std::vector<std::size_t> order_;  // in this pass
  std::array<std::vector<std::size_t>, 2> last_order_;
  std::optional<std::size_t> current_;
};

}  // namespace lockstep::fsdp
