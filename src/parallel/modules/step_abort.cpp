// SPDX-License-Identifier: BSD-3-Clause
#include "modules/step_abort.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"

namespace lockstep::modules {
namespace {

constexpr std::chrono::milliseconds kLongestDelay{2000};
constexpr int kEagerPolls = 200;
constexpr std::chrono::microseconds kPause{50};
// Marks the reason of a rank whose module has changed, which has failed in nothing.
constexpr std::string_view kChange = "its module has changed: ";

}  // namespace

StepAbort::StepAbort(ProcessGroup group)
    : group_(std::move(group)), number_(comm::state_of(group_).next_scope()) {}

bool StepAbort::is_local() const { return comm::state_of(group_).node_group() != nullptr; }

void StepAbort::set_scope(std::uint64_t scope) const {
  const auto host = comm::state_of(group_).node_group();
  if (host) host->own_status().scope.store(scope, std::memory_order_relaxed);
}

std::uint64_t StepAbort::progress(std::uint64_t forwards) const {
  return node::StepProgress{.object = number_, .step = step_, .forwards = forwards}.packed();
}

void StepAbort::begin_forward() {
  const auto host = comm::state_of(group_).node_group();
  if (!host) return;
  set_scope(scope());
  host->own_status().progress[place()].store(progress(++forwards_), std::memory_order_release);
}

void StepAbort::abort(const std::string& reason, bool is_final) const {
  if (const auto host = comm::state_of(group_).node_group()) host->refuse(scope(), reason, is_final);
}

void StepAbort::throw_if_aborted() const {
  const auto host = comm::state_of(group_).node_group();
  if (host) throw_with(host->refusals(), host->details_of(host->refusing_ranks()));
}

void StepAbort::throw_with(const std::string& lines, ErrorDetails about) const {
  if (lines.empty()) return;
  about.group = comm::state_of(group_).info().name;
  throw_error<DesyncError>(std::move(about), "{}: other ranks aborted this step:{}",
                           comm::state_of(group_).whoami(), lines);
}

std::string StepAbort::reasons_of_others() const {
  const auto host = comm::state_of(group_).node_group();
  if (!host) return "";
  // It has given its reason, or it will not get as far as giving one.
  const auto is_settled = [&](int rank) {
    const auto& status = host->status(rank);
    const bool waits = status.awaited.load(std::memory_order_acquire) > last_call();
    return host->refuses(rank, scope()) || waits || host->find_dead() >= 0;
  };
  std::string text;
  const Deadline deadline(kLongestDelay);
  for (int rank = 0; rank < host->size(); ++rank) {
    if (rank == host->rank()) continue;
    while (!is_settled(rank) && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    text += fmt::format("\n  {}: {}", host->name_of(rank),
                        host->refuses(rank, scope()) ? host->reason_of(rank) : "none");
  }
  return text;
}

std::string StepAbort::change_of(const node::NodeGroup& host, int rank) const {
  const auto reason = host.refuses(rank, scope()) ? host.reason_of(rank) : std::string();
  return reason.starts_with(kChange) ? reason.substr(kChange.size()) : "";
}

void StepAbort::throw_if_changed() const {
  const auto host = comm::state_of(group_).node_group();
  for (int rank = 0; host && rank < host->size(); ++rank) {
    if (const auto change = rank == host->rank() ? "" : change_of(*host, rank); !change.empty())
      throw_with(fmt::format("\n  {}: {}{}", host->name_of(rank), kChange, change), host->details_of({rank}));
  }
}

void StepAbort::abort_for_change(const std::string& change) const {
  abort(std::string(kChange) + change, /*is_final=*/true);
}

std::vector<std::string> StepAbort::exchange_changes(const std::string& change) const {
  const auto host = comm::state_of(group_).node_group();
  abort_for_change(change);
  std::vector<std::string> changes(static_cast<std::size_t>(host->size()), change);
  const Deadline deadline(comm::state_of(group_).timeout());
  for (int rank = 0; rank < host->size(); ++rank) {
    if (rank == host->rank()) continue;
    await_arrival(*host, rank, deadline);
    changes[static_cast<std::size_t>(rank)] = change_of(*host, rank);
  }
  return changes;
}

void StepAbort::await_arrival(const node::NodeGroup& host, int rank, const Deadline& deadline) const {
  for (int polls = 0;; ++polls) {
    const auto reached = host.status(rank).progress[place()].load(std::memory_order_acquire);
    const auto next = progress(forwards_ + 1);
    using node::StepProgress;
    const bool has_begun =
        StepProgress::object_of(reached) == StepProgress::object_of(next) && reached >= next;
    if (has_begun || host.refuses(rank, scope())) return;
    const auto whoami = comm::state_of(group_).whoami();
    const auto about = [&](int culprit) {
      auto details = host.details_of({culprit});
      details.group = comm::state_of(group_).info().name;
      return details;
    };
    if (const int dead = host.find_dead(); dead >= 0) {
      throw_error<PeerLost>(
          about(dead),
          "{}: DistributedDataParallel: {} died while this rank waited for it to agree on a change "
          "of the module",
          whoami, host.name_of(dead));
    }
    if (deadline.expired()) {
      throw_error<TimeoutError>(
          about(rank),
          "{}: DistributedDataParallel: the module has changed here, and {} has not come to its "
          "next forward in time",
          whoami, host.name_of(rank));
    }
    if (polls < kEagerPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

bool StepAbort::all_may_abort() const {
  const auto host = comm::state_of(group_).node_group();
  const Deadline deadline(kLongestDelay);
  for (int rank = 0; host && rank < host->size(); ++rank) {
    while (rank != host->rank() && !host->refuses(rank, scope()) && !deadline.expired()) {
      // A rank aborts before it waits.
      const bool waits = host->status(rank).awaited.load(std::memory_order_acquire) > last_call();
      if (waits && !host->refuses(rank, scope())) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

std::vector<std::string> StepAbort::exchange_reasons(const std::string& own) const {
  const comm::CallSite site("reasons of a failed step");
  auto reasons = group_.all_gather_object(own);
  if (std::ranges::all_of(reasons, &std::string::empty)) reasons.clear();
  return reasons;
}

void StepAbort::throw_if_any(const std::vector<std::string>& reasons) const {
  ErrorDetails about;
  for (int rank = 0; rank < static_cast<int>(reasons.size()); ++rank)
    if (rank != group_.rank() && !reasons[static_cast<std::size_t>(rank)].empty())
      about.ranks.push_back(rank);
  throw_with(to_lines(reasons), std::move(about));
}

std::string StepAbort::to_lines(const std::vector<std::string>& reasons) const {
  std::string text;
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (static_cast<int>(rank) == group_.rank()) continue;
    text += fmt::format("\n  rank {}: {}", rank, reasons[rank].empty() ? "none" : reasons[rank]);
  }
  return text;
}

std::uint64_t StepAbort::last_call() const { return comm::state_of(group_).log().last_number(); }

int StepAbort::last_to_issue(std::uint64_t call) const {
  const auto host = comm::state_of(group_).node_group();
  return host ? host->last_to_issue(call) : -1;
}

}  // namespace lockstep::modules
