// SPDX-License-Identifier: BSD-3-Clause
#include "comm/peer_check.h"

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "base/time_limits.h"
#include "comm/group_state.h"
#include "node/node_group.h"
#include "observe/find_runs.h"
#include "observe/recorder_files.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeToDie = 100ms;  // of the rank because of which SIGTERM was sent

[[noreturn]] void throw_terminated(const node::NodeGroup* others) {
  const int dead = find_dead_soon(others, kTimeToDie);
  if (dead >= 0) throw PeerLost(others->name_of(dead) + " died", others->details_of({dead}));
  throw PeerLost("SIGTERM came, which mpirun sends to all ranks when one of them fails");
}

}  // namespace

bool NodeWait::is_refused() const { return others != nullptr && !others->refusals().empty(); }

int NodeWait::find_dead() const { return others == nullptr ? -1 : others->find_dead(); }

void NodeWait::check() const {
  const auto [fault, rank] = check_peers(*this);
  switch (fault) {
    case PeerFault::refused:
      throw DesyncError("another rank refuses it", others->details_of(others->refusing_ranks()));
    case PeerFault::dead:
      throw PeerLost(others->name_of(rank) + " died", others->details_of({rank}));
    case PeerFault::left:
      throw_terminated(others);
    case PeerFault::late:
      std::rethrow_exception(late);
    case PeerFault::none:
      break;
  }
}

std::exception_ptr late_error(bool is_late, std::chrono::milliseconds timeout, const std::string& where) {
  if (!is_late) return nullptr;
  return std::make_exception_ptr(
      TimeoutError(fmt::format("it has not ended{} after {} ms", where, timeout.count())));
}

int find_dead_soon(const node::NodeGroup* others, std::chrono::milliseconds limit) {
  if (others == nullptr) return -1;
  const Deadline deadline(limit);
  while (true) {
    const int dead = others->find_dead();
    if (dead >= 0 || deadline.expired()) return dead;
    std::this_thread::sleep_for(1ms);
  }
}

bool has_lost_rank(const ProcessGroup& group, std::chrono::milliseconds limit) {
  const auto others = state_of(group).node_group();
  if (others == nullptr) return false;
  const Deadline deadline(limit);
  while (true) {
    if (!others->lost_ranks().empty()) return true;
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(1ms);
  }
}

namespace {

// Backends throw plain runtime errors; only their text shows what happened.
constexpr std::array kTimeoutSigns = {"Timed out",
                                      "timed out",
                                      "Timeout",
                                      "timeout",
                                      "failed to pass monitoredBarrier",
                                      "reached monitoredBarrier"};
constexpr std::array kPeerSigns = {"Connection closed by peer",
                                   "Connection reset by peer",
                                   "Connection refused",
                                   "Broken pipe",
                                   "Socket closed",
                                   "connection closed"};

constexpr auto kDeathLimit = std::chrono::milliseconds(50);
constexpr auto kNoteLimit = std::chrono::milliseconds(500);  // the rank may have lost its core

bool mentions(std::string_view text, const auto& signs) {
  return std::ranges::any_of(signs,
                             [&](const char* sign) { return text.find(sign) != std::string_view::npos; });
}

// The facts for the message of a failed call.
struct FailedCall {
  const GroupState& group;
  const CallRecord& call;
  ErrorDetails about = {};

  // The ranks are those that the cause names, or else these.
  ErrorDetails about_ranks(const std::vector<int>& ranks = {}) const {
    auto details = about;
    const auto others = group.node_group();
    if (details.ranks.empty() && others != nullptr) {
      auto found = others->details_of(ranks);
      details.ranks = std::move(found.ranks);
      details.host = std::move(found.host);
    }
    details.group = group.info().name;
    details.call = call.describe();
    return details;
  }
  // The rank that the cause names, then all others that are lost: which one was first is not known.
  ErrorDetails about_lost() const {
    const auto others = group.node_group();
    const auto lost = others ? others->details_of(others->lost_ranks()) : ErrorDetails();
    auto details = about_ranks();
    if (details.ranks.empty()) details.host = lost.host;
    for (const int rank : lost.ranks)
      if (std::ranges::find(details.ranks, rank) == details.ranks.end()) details.ranks.push_back(rank);
    return details;
  }
  std::string begin() const { return group.whoami() + ": " + call.describe(); }
  std::string end() const {
    const auto others = group.node_group();
    return (others == nullptr || others->size() < 2 ? "" : "\nThe other ranks:" + others->describe_others()) +
           dead_in_job();
  }

  // Ranks that have not made this call, as far as the numbers of calls show it.
  std::vector<int> missing() const {
    const auto others = group.node_group();
    const bool is_message = call.kind == CallKind::send || call.kind == CallKind::recv;
    return others == nullptr || is_message ? std::vector<int>() : others->ranks_without(call.number);
  }
  // The first error may be that of a rank outside of the group. All are named: which one died first is not known.
  std::string dead_in_job() const {
    const auto job = group.job();
    const auto dead = job ? job->describe_dead() : "";
    return dead.empty() ? "" : "\nDead in this job: " + dead;
  }
};

// The ranks of the group, or of the job, that have left without an exception, if all run on this host.
std::string describe_finished(const GroupState& group) {
  for (const auto& others : {group.node_group(), group.job()}) {
    if (auto finished = others ? others->describe_finished() : ""; !finished.empty()) return finished;
  }
  return "";
}

void warn_of_recorder_files(std::string_view reason) {
  log(LogLevel::warning, fmt::format("{}: {}", observe::kRecorderVariable, reason));
}

void keep_recorder_files(const std::string& folder) noexcept {
  try {
    observe::keep_recorder_files(observe::find_run(std::to_string(::getpid())).read(), folder);
  } catch (const std::exception& error) {
    warn_of_recorder_files(error.what());
  }
}

// While the memory of the other ranks shows what they are doing. On a thread of its own: /proc of a stuck process
// and a folder on a dead file system may never answer, and the error has a deadline.
void write_recorder_files(const FailedCall& failed) noexcept {
  try {
    const auto folder = Env().get(observe::kRecorderVariable);
    if (!folder || failed.group.node_group() == nullptr) return;
    auto done = std::make_shared<std::promise<void>>();
    const auto end = done->get_future();
    start_thread<std::thread>("recorder files", [done, folder = *folder] {
      keep_recorder_files(folder);
      done->set_value();
    }).detach();
    if (end.wait_for(kRecorderFilesLimit) != std::future_status::ready)
      warn_of_recorder_files(
          fmt::format("the files were not written within {} s", kRecorderFilesLimit.count()));
  } catch (const std::exception& error) {
    warn_of_recorder_files(error.what());
  }
}

[[noreturn]] void throw_lost(const FailedCall& failed, const std::string& reason) {
  write_recorder_files(failed);
  const auto others = failed.group.node_group();
  if (const auto finished = describe_finished(failed.group); !finished.empty()) {
    throw_error<PeerLost>(
        failed.about_ranks(others ? others->finished_ranks() : std::vector<int>()),
        "{} failed because another rank is gone: {}. Unless it reports an error, this looks like uneven data: "
        "give every rank the same number of batches, as DistributedSampler does, or run the loop inside "
        "DistributedDataParallel::join(){}",
        failed.begin(), finished, failed.end());
  }
  throw_error<PeerLost>(
      failed.about_lost(),
      "{} failed because another rank is gone: {}. Look for the first error among the other ranks; "
      "this one is its consequence{}",
      failed.begin(), reason, failed.end());
}

[[noreturn]] void throw_late(const FailedCall& failed, const std::string& reason) {
  write_recorder_files(failed);
  throw_error<TimeoutError>(
      failed.about_ranks(failed.missing()),
      "{} did not finish in time: {}. Some rank did not make the matching call; compare what "
      "each rank was doing, or raise InitOptions::timeout{}",
      failed.begin(), reason, failed.end());
}

// A rank's descriptor may be visible a moment before its rank status.
void await_notes(const FailedCall& failed) {
  const auto others = failed.group.node_group();
  const bool is_message = failed.call.kind == CallKind::send || failed.call.kind == CallKind::recv;
  if (others == nullptr || is_message) return;
  const Deadline deadline(kNoteLimit);
  while (!others->have_all_issued(failed.call.number) && !deadline.expired()) std::this_thread::yield();
}

[[noreturn]] void throw_by_text(const FailedCall& failed, const std::string& reason) {
  // Peer signs first: Gloo's text for a closed connection may also mention the timeout that was set.
  if (mentions(reason, kPeerSigns)) {
    const auto others = failed.group.node_group();
    const int dead = find_dead_soon(others.get(), kDeathLimit);
    throw_lost(failed, dead < 0 ? reason : fmt::format("{} died ({})", others->name_of(dead), reason));
  }
  if (mentions(reason, kTimeoutSigns)) throw_late(failed, reason);
  throw_error<Error>(failed.about_ranks(), "{} failed: {}", failed.begin(), reason);
}

// By the backend, or by a function of LibTorch that it has called.
[[noreturn]] void throw_refused(const FailedCall& failed, std::string_view text) {
  throw_error<ArgumentError>(failed.about_ranks(), "{}: {}", failed.begin(), first_line_of(text));
}

void throw_if_refused(const GroupState& group, const CallRecord& call) {
  const auto others = group.node_group();
  const auto reasons = others ? others->refusals() : std::string();
  if (!reasons.empty()) {
    write_recorder_files({group, call});
    throw_error<DesyncError>(FailedCall{group, call}.about_ranks(others->refusing_ranks()),
                             "{}: other ranks aborted {}:{}", group.whoami(), call.describe(), reasons);
  }
}

}  // namespace

void rethrow_as_ours(const std::exception_ptr& cause, const GroupState& group, const CallRecord& call) {
  throw_if_refused(group, call);
  FailedCall failed{group, call};
  try {
    std::rethrow_exception(cause);
  } catch (const ArgumentError& error) {
    throw_error<ArgumentError>(failed.about_ranks(), "{}: {}", failed.begin(), error.what());
  } catch (const PeerLost& error) {
    failed.about = error.details();
    throw_lost(failed, error.what());
  } catch (const TimeoutError& error) {
    failed.about = error.details();
    throw_late(failed, error.what());
  } catch (const DesyncError& error) {
    failed.about = error.details();
    await_notes(failed);
    write_recorder_files(failed);
    throw_error<DesyncError>(failed.about_ranks(),
                             "{}: {}. Every rank has to make the same calls in the same order{}",
                             failed.begin(), error.what(), failed.end());
  } catch (const Error& error) {
    failed.about = error.details();
    throw_error<Error>(failed.about_ranks(), "{} failed: {}", failed.begin(), error.what());
  } catch (const c10::NotImplementedError& error) {
    throw_refused(failed, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    throw_refused(failed, error.what_without_backtrace());
  } catch (const std::invalid_argument& error) {
    throw_refused(failed, error.what());
  } catch (const c10::Error& error) {
    throw_by_text(failed, first_line_of(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw_by_text(failed, first_line_of(error.what()));
  }
}

}  // namespace lockstep::comm
