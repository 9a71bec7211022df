// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/group_trouble.h"

#include <limits>
#include <thread>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include "comm/group_state.h"

namespace lockstep::ddp {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLongestDelay{2000};
constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

// It has given its reason, or it will not come as far as giving one.
bool has_spoken(const comm::HostGroup& host, int rank, std::uint64_t first) {
  return host.refuses(rank, first) || host.board(rank).awaited.load(std::memory_order_acquire) >= first ||
         host.find_dead() >= 0;
}

}  // namespace

std::uint64_t last_call(const ProcessGroup& group) { return group.state().log().last_number(); }

void refuse_calls_from(const ProcessGroup& group, std::uint64_t first, const std::string& reason) {
  if (const auto host = group.state().host_group()) host->refuse(first, kForever, reason);
}

void end_refusal(const ProcessGroup& group, std::uint64_t last) {
  if (const auto host = group.state().host_group()) host->end_refusal(last);
}

void throw_if_refused(const ProcessGroup& group, std::uint64_t first, std::uint64_t last,
                      const std::string& what) {
  const auto host = group.state().host_group();
  const auto reasons = host ? host->refusals_of(first, last) : std::string();
  if (!reasons.empty()) throw DesyncError(fmt::format("{}: {}{}", group.state().whoami(), what, reasons));
}

std::string reasons_of_others(const ProcessGroup& group, std::uint64_t first) {
  const auto host = group.state().host_group();
  if (!host) return "";
  std::string text;
  const Deadline deadline(kLongestDelay);
  for (int rank = 0; rank < host->size(); ++rank) {
    if (rank == host->rank()) continue;
    while (!has_spoken(*host, rank, first) && !deadline.expired()) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
    const bool same = host->refuses(rank, first);
    text += fmt::format("\n  {}: {}", host->name_of(rank), same ? host->reason_of(rank) : "none");
  }
  return text;
}

int last_to_issue(const ProcessGroup& group, std::uint64_t call) {
  const auto host = group.state().host_group();
  return host ? host->last_to_issue(call) : -1;
}

}  // namespace lockstep::ddp
