// SPDX-License-Identifier: BSD-3-Clause
#include "launch/ended_children.h"

#include <algorithm>
#include <cerrno>
#include <sys/wait.h>

namespace lockstep::launch {
namespace {

// 0, EAGAIN when none has ended, or ECHILD when there is none.
int take(idtype_t type, pid_t pid, std::vector<RankExit>& exits) {
  siginfo_t info{};
  if (::waitid(type, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0) return errno;
  if (info.si_pid == 0) return EAGAIN;
  const bool exited = info.si_code == CLD_EXITED;
  exits.push_back({.pid = info.si_pid,
                   .code = exited ? info.si_status : 0,
                   .signal = exited ? 0 : info.si_status,
                   .core_dumped = info.si_code == CLD_DUMPED});
  return 0;
}

}  // namespace

EndedChildren reap_ended_children(pid_t first) {
  EndedChildren ended;
  take(P_PID, first, ended.exits);
  const auto known = static_cast<std::ptrdiff_t>(ended.exits.size());
  int outcome = 0;
  while (outcome == 0) outcome = take(P_ALL, 0, ended.exits);
  ended.any_left = outcome != ECHILD;
  // Those that ended at nearly the same time are found in no useful order: a crash is likelier to be a cause
  // than an exit.
  std::stable_partition(ended.exits.begin() + known, ended.exits.end(),
                        [](const auto& exit) { return exit.signal != 0; });
  return ended;
}

}  // namespace lockstep::launch
