// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

namespace lockstep::training {

// What a rank tells the others of the commits that its launcher keeps.
struct HeldCommits {
  struct Own {
    std::int64_t number = 0;
    std::int64_t common_bytes = 0;  // of the part that all ranks have alike
  };
  struct Copy {
    std::int64_t number = 0;
    int rank = 0;  // whose own part it is
    std::int64_t bytes = 0;
  };

  std::string host{};  // commits of ranks with equal host and launcher are lost together
  std::int64_t launcher = 0;
  std::vector<Own> own{};
  std::vector<Copy> copies{};
  std::int64_t message_bytes = 0;  // of the messages with own parts that the ranks have agreed on

  const Own* find_own(std::int64_t number) const;
  const Copy* find_copy(std::int64_t number, int rank) const;
};

std::string packed(const HeldCommits& held);
HeldCommits unpacked(const std::string& bytes);

// [rank]: the rank that keeps its copies: on the next host that has another identity, else of the next launcher, the one with its
// number there, modulo their number. Empty with one launcher.
std::vector<int> neighbours_of(const std::vector<HeldCommits>& ranks);

// How all ranks return to one commit.
struct ReturnPlan {
  // To a rank without the commit, from one with a copy of its own part.
  struct Transfer {
    int from = 0;
    int to = 0;
  };

  std::int64_t number = 0;
  int source = 0;  // the first rank that has the commit itself, and so the common part
  std::vector<Transfer> transfers{};
};

// To the newest commit that every rank has, or another rank in a copy. nullopt without one. The same on all ranks.
std::optional<ReturnPlan> plan_return(const std::vector<HeldCommits>& ranks);

}  // namespace lockstep::training
