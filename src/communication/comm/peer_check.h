// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>

// Needs no LibTorch, because shm's core includes it.
namespace lockstep {
struct CallRecord;
namespace node {
class NodeGroup;
}
class ProcessGroup;
}  // namespace lockstep

namespace lockstep::comm {

class GroupState;

// Note [Dead, refused or late?]
//
// A wait for other ranks can fail for several reasons at once, because each causes the next ones: a rank that
// refuses a call leaves, the ranks that it leaves fail and end, and all others wait until their limit. Every
// wait therefore reports the first one of:
//
//   1. another rank refuses the call (DesyncError): it knows the cause
//   2. another rank is dead (PeerLost)
//   3. a rank that the call needs has left, or the launcher ends the ranks (PeerLost)
//   4. the limit has passed (TimeoutError), which says nothing about the cause
//
// A rank publishes its part of a call before it leaves or dies. So a wait first looks for 1 to 4, then
// whether its call has ended, and fails only if it has not.
//
// check_peers() is the only place with this order. Waits call it once every kPeerCheckPeriod, and at their
// limit.

inline constexpr std::chrono::milliseconds kPeerCheckPeriod{20};

enum class PeerFault { none, refused, dead, left, late };

struct PeerVerdict {
  PeerFault fault = PeerFault::none;
  int rank = -1;  // the dead one
};

// `wait`: is_refused(), find_dead() (a rank or -1), has_left(), is_late() and is_done().
template <class Wait>
PeerVerdict check_peers(const Wait& wait) {
  const auto found = [&]() -> PeerVerdict {
    if (wait.is_refused()) return {PeerFault::refused};
    if (const int dead = wait.find_dead(); dead >= 0) return {PeerFault::dead, dead};
    if (wait.has_left()) return {PeerFault::left};
    return {wait.is_late() ? PeerFault::late : PeerFault::none};
  }();
  if (found.fault == PeerFault::none || wait.is_done()) return {};
  // The call may have advanced, so that it does not need that rank any more.
  return found.fault == PeerFault::left && !wait.has_left() ? PeerVerdict{} : found;
}

// When a wait has to call check_peers(). Safe from any thread: a check is due for one of them.
class PeerCheckTimer {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_due(Clock::time_point now = Clock::now()) {
    auto next = next_.load(std::memory_order_relaxed);
    return now >= next && next_.compare_exchange_strong(next, now + kPeerCheckPeriod);
  }

 private:
  std::atomic<Clock::time_point> next_{Clock::now() + kPeerCheckPeriod};
};

// A wait for ranks of one host over a backend that does not look at them.
struct NodeWait {
  const node::NodeGroup* others;  // nullptr: ranks of several hosts, of which nothing is known
  std::function<bool()> has_ended;
  std::exception_ptr late;  // what the wait throws, if its limit has passed
  bool is_ending = false;   // the launcher ends the ranks

  bool is_refused() const;
  int find_dead() const;
  bool has_left() const { return is_ending; }
  bool is_late() const { return late != nullptr; }
  bool is_done() const { return has_ended(); }
  // Throws what check_peers() finds.
  void check() const;
};

// "it has not ended on the device after 500 ms"; nullptr unless the wait is late.
std::exception_ptr late_error(bool is_late, std::chrono::milliseconds timeout, const std::string& where = "");

// A rank that is dead, or -1 if none is seen to be within `limit`: other effects of a death may be seen
// first.
int find_dead_soon(const node::NodeGroup* others, std::chrono::milliseconds limit);

// Whether another rank of the group is lost within `limit`: it has died before it has finished, or it has left
// the group to form it again because it has noticed such a death first. If so, an error may be the consequence. Not
// collective. False for a closed group, and for ranks on several hosts.
bool has_lost_rank(const ProcessGroup& group, std::chrono::milliseconds limit);

// Rethrows the failure of one call as the matching type: TimeoutError, PeerLost, DesyncError, ArgumentError
// or Error; as DesyncError with their reasons if other ranks refuse the call. The message names the rank, the
// call and the event and, if all ranks run on one host, what each other rank is doing. Its details are those of
// the cause, with group and call, and the ranks that are lost or late as far as this host shows them.
[[noreturn]] void rethrow_as_ours(const std::exception_ptr& cause, const GroupState& group,
                                  const CallRecord& call);

}  // namespace lockstep::comm
