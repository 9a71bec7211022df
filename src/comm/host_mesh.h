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
  // Why a rank cannot take part, where all can read it; the first complaint stays. None yet: empty.
  std::function<void(const std::string&)> complain;
  std::function<std::string()> complaint;
  std::shared_ptr<ThreadMeeting> threads = {};
  std::string group = {};  // its name among `threads`
};

// Of a rank that cannot take part: the others are told why instead of waiting for it.
void stay_away(int rank, const MeetingPoint& point, const std::string& reason) noexcept;

// Every rank brings a segment and leaves with all of them, [i] being rank i's. All ranks run on one host as
// one user. Throws RendezvousError naming the ranks that did not come, on all ranks when one stays away or
// cannot map what the others bring.
std::vector<HostMember> meet_on_host(int rank, int size, SharedMemory own, const MeetingPoint& point,
                                     const Deadline& deadline);

}  // namespace lockstep::comm
