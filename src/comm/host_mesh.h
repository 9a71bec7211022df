// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/base/deadline.h>
#include <lockstep/base/shared_memory.h>
#include <lockstep/base/unique_fd.h>

#include "comm/thread_meeting.h"

namespace lockstep::comm {

// One rank as the others of its host see it.
struct HostMember {
  std::shared_ptr<const SharedMemory> memory = {};  // the segment that it brought along
  UniqueFd process = {};  // its pidfd, readable once it has died; good across pid namespaces too
};

// How rank 0 tells the others the name of its local socket: through the store that they share. Threads of one
// process need no socket.
struct MeetingPoint {
  std::function<void(const std::string&)> publish;
  std::function<std::string()> lookup;
  std::shared_ptr<ThreadMeeting> threads = {};
  std::string group = {};  // its name among `threads`
};

// Every rank brings a segment and leaves with all of them, [i] being rank i's. All ranks run on one host as
// one user. Throws RendezvousError naming the ranks that did not come.
std::vector<HostMember> meet_on_host(int rank, int size, SharedMemory own, const MeetingPoint& point,
                                     const Deadline& deadline);

}  // namespace lockstep::comm
