// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <source_location>
#include <string>

#include <lockstep/comm/process_group.h>

namespace lockstep::comm {

// The state of a ProcessGroup on a rank that is not in the group.
struct NonMember {
  std::string group;           // its name
  std::string members;         // "the ranks [0, 2]"
  int rank;                    // of this process, as the members are numbered
  std::source_location where;  // at which the program made the group
  std::atomic<bool> warned{false};

  NonMember(std::string name, std::string ranks, int own_rank);

  // The group on this rank, which is not in it.
  static ProcessGroup outside_of(std::string name, std::string ranks, int own_rank);
  // nullptr on a member.
  static NonMember* of(const ProcessGroup& group) { return group.non_member_.get(); }
};

// Throws ArgumentError: `user` needs a group that this rank is in. `where`: the line of the call.
[[noreturn]] void refuse_non_member(const ProcessGroup& group, const char* user,
                                    const std::source_location& where = {});

// The same for an argument; nothing if there is none.
inline void require_member(const std::optional<ProcessGroup>& group, const char* user) {
  if (group && !*group) refuse_non_member(*group, user);
}

// False on a member. Otherwise true, and the first time a warning says that `call` does nothing.
bool skips(const ProcessGroup& group, const char* call, const std::source_location& where);

}  // namespace lockstep::comm
