// SPDX-License-Identifier: BSD-3-Clause
#include "modules/change_agreement.h"

#include <algorithm>
#include <utility>

#include "base/throw_error.h"
#include "comm/group_state.h"

namespace lockstep::modules {

ChangeAgreement::ChangeAgreement(ProcessGroup group) : group_(std::move(group)), abort_(group_) {}

void ChangeAgreement::end_others(std::string why) const {
  std::ranges::replace(why, '\n', ' ');  // the reasons of several ranks have a line each
  abort_.abort(why, /*is_final=*/true);
}

void ChangeAgreement::confirm(const std::string& change, const ModuleText& now, std::source_location where) {
  if (group_.size() == 1) return;
  const auto listening = abort_.listen();
  refuse(change);
  try {
    if (!abort_.all_may_abort()) throw DesyncError("Another rank is in a call of the step");
    check_same_on_all_ranks(group_, now, where);
  } catch (const Error& error) {
    end_others(change);
    throw_error<DesyncError>(comm::reporter_of(group_), comm::about(group_, error.ranks()),
                             "{}: {}, but not on all ranks. {}. {}", now.user, change, now.advice,
                             error.what());
  }
  abort_.end_step();
}

}  // namespace lockstep::modules
