// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/messages.h"

namespace lockstep::launch {

// The local socket at which a launcher can be asked what the ranks of all hosts of its run do, see Looks. Its
// name, in the abstract namespace of unix(7), follows from the pid, so that no file stays behind. Both sides
// accept only processes of their own user.

// That of this process, which does not block. Empty, with the reason in errno, if another process has the name.
UniqueFd listen_for_views();
// The next connection; empty if there is none, or if it is that of a process that does not run as `user`.
UniqueFd accept_view(int listener, uid_t user = ::geteuid());

// What a host shows of its ranks.
struct HostView {
  std::string name{};
  std::string problem{};             // why it shows nothing, or not all
  std::vector<std::string> parts{};  // as LaunchOptions::snapshot makes them
  std::int64_t after_ms = 0;         // from the question to the last part
};

// Whether this user's process `pid` is a launcher that can be asked.
bool can_be_asked(int pid, uid_t user = ::geteuid());

// A question to a launcher, which is asked once.
class LauncherQuestion {
 public:
  // Throws LaunchError if the launcher is not there.
  LauncherQuestion(int pid, const Deadline& deadline);

  // The answer; nullopt if it is not complete when `until` has passed. Hosts that do not answer are in it.
  // Throws LaunchError if the launcher itself has not answered before the deadline.
  std::optional<std::vector<HostView>> wait(const Deadline& until);

 private:
  bool take_lines();

  int pid_;
  Deadline deadline_;
  LineConnection connection_;
  std::map<int, HostView> hosts_;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::launch
