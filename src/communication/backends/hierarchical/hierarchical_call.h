// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <source_location>

#include <lockstep/comm/process_group.h>

#include "backends/hierarchical/legs.h"
#include "base/deadline.h"
#include "base/throw_error.h"
#include "comm/fingerprint.h"
#include "comm/pending_call.h"

namespace lockstep::backends {

// A call of this backend, whose parts run on the host and in lanes.
class HierarchicalCall {
 public:
  HierarchicalCall(const comm::Call& call, const Peers& peers)
      : where_(call.where),
        whole_(comm::fingerprint(call)),
        deadline_(call.timeout),
        reserve_(std::min(kReserve, call.timeout / 10)),
        peers_(peers) {}

  // The ranks that are late may wait for other hosts, so the error says what is known about these.
  void run(const Leg& host, comm::Call&& part) const {
    try {
      comm::run(host, completed(std::move(part), {}));
    } catch (const TimeoutError& error) {
      const auto seen = describe_connections(peers_);
      if (seen.empty()) throw;
      throw_error<TimeoutError>(error.details(), "{}\nOn the network: {}", error.what(), seen);
    }
  }
  Work start(const Leg& lane, comm::Call&& part) const {
    return comm::start(lane, completed(std::move(part), reserve_));
  }
  // Looks at the connections well before the limit, because Gloo closes them there.
  void wait(Work& work) const {
    if (peers_.hosts.empty()) return work.wait();
    try {
      return work.wait(remaining(3 * reserve_));
    } catch (const TimeoutError&) {
      const auto seen = describe_connections(peers_);
      rethrow_late(work, seen);
    }
  }
  void run_in_lane(const Leg& lane, comm::Call&& part) const {
    auto work = start(lane, std::move(part));
    wait(work);
  }

 private:
  // The part of a limit that is left for the errors of the other ranks of the host.
  static constexpr std::chrono::milliseconds kReserve{200};

  static void rethrow_late(Work& work, const std::string& seen) {
    try {
      work.wait();
    } catch (const TimeoutError& error) {
      if (seen.empty()) throw;
      throw_error<TimeoutError>(error.details(), "{}. {}", seen, error.what());
    }
  }
  std::chrono::milliseconds remaining(std::chrono::milliseconds reserve) const {
    return std::max(std::chrono::milliseconds(1), deadline_.remaining() - reserve);
  }
  comm::Call&& completed(comm::Call&& part, std::chrono::milliseconds reserve) const {
    part.where = where_;
    part.whole = whole_;
    part.timeout = remaining(reserve);
    return std::move(part);
  }

  std::source_location where_;
  std::uint64_t whole_;
  Deadline deadline_;
  std::chrono::milliseconds reserve_;
  const Peers& peers_;
};

}  // namespace lockstep::backends
