// SPDX-License-Identifier: BSD-3-Clause
#include "comm/non_member.h"

#include <utility>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep::comm {
namespace {

constexpr auto* kOptionalAdvice =
    "A std::optional that holds the group is always set; test the group itself: `if (*group)`";

std::string outside_text(const NonMember& group) {
  return fmt::format("rank {} is not in group {} of {}{}", group.rank, group.group, group.members,
                     made_at(group.where));
}

}  // namespace

NonMember::NonMember(std::string name, std::string ranks, int own_rank)
    : group(std::move(name)), members(std::move(ranks)), rank(own_rank), where(CallerPlace::current()) {}

ProcessGroup NonMember::outside_of(std::string name, std::string ranks, int own_rank) {
  return ProcessGroup(std::make_shared<NonMember>(std::move(name), std::move(ranks), own_rank));
}

void refuse_non_member(const ProcessGroup& group, const char* user, const std::source_location& where) {
  const auto* const state = NonMember::of(group);
  if (state == nullptr) {
    throw_error<ArgumentError>(
        "{}{}: this ProcessGroup has been moved from; use the one that it was moved to", line_prefix(where),
        user);
  }
  throw_error<ArgumentError>(
      ErrorDetails{.group = state->group},
      "{}{}: {}; use the group only inside `if (group)`, which is false on this rank. {}", line_prefix(where),
      user, outside_text(*state), kOptionalAdvice);
}

bool skips(const ProcessGroup& group, const char* call, const std::source_location& where) {
  auto* const state = NonMember::of(group);
  if (state == nullptr) return false;
  if (!state->warned.exchange(true)) {
    log(LogLevel::warning,
        fmt::format(
            "{}{}() does nothing: {}; call it inside `if (group)`. {}. Later calls on the group do not repeat this",
            line_prefix(where), call, outside_text(*state), kOptionalAdvice));
  }
  return true;
}

}  // namespace lockstep::comm
