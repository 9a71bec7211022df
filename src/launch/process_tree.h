// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>
#include <vector>

#include <lockstep/base/deadline.h>

namespace lockstep::launch {

/// While it lives, orphaned descendants of this process become its children instead of init's. So none can
/// get away, and a wait for children that says there are none means that no descendant is left.
class ChildSubreaper {
 public:
  ChildSubreaper();
  ~ChildSubreaper();
  ChildSubreaper(const ChildSubreaper&) = delete;
  ChildSubreaper& operator=(const ChildSubreaper&) = delete;
};

/// Every living descendant of this process, in no particular order.
std::vector<pid_t> descendants();

/// Sends `signal` to every living descendant of this process, as far as they can be seen at this moment.
void signal_descendants(int signal);

/// REQUIRES a ChildSubreaper. SIGKILLs and reaps descendants until none is left. False when some are still
/// there at the deadline.
bool kill_descendants(const Deadline& deadline);

}  // namespace lockstep::launch
