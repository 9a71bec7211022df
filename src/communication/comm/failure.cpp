// SPDX-License-Identifier: BSD-3-Clause
#include "comm/failure.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/throw_error.h"
#include "comm/peer_check.h"

namespace lockstep::comm {
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

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The facts for the message of a failed call.
struct FailedCall {
  const GroupState& group;
  const CallRecord& call;

  std::string begin() const { return group.whoami() + ": " + call.describe(); }
  std::string end() const {
    const auto others = group.node_group();
    return (others == nullptr || others->size() < 2 ? "" : "\nThe other ranks:" + others->describe_others()) +
           dead_in_job();
  }

  // The first error may be that of a rank outside of the group.
  std::string dead_in_job() const {
    const auto job = group.job();
    for (int look = 0; job != nullptr && look < job->size(); ++look) {
      if (const int dead = job->find_dead(); dead >= 0)
        return fmt::format("\nDead in this job: {}", job->name_of(dead));
    }
    return "";
  }
};

[[noreturn]] void throw_lost(const FailedCall& failed, const std::string& reason) {
  throw_error<PeerLost>(
      "{} failed because another rank is gone: {}. Look for the first error among the other ranks; "
      "this one is its consequence{}",
      failed.begin(), reason, failed.end());
}

[[noreturn]] void throw_late(const FailedCall& failed, const std::string& reason) {
  throw_error<TimeoutError>(
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
  throw_error<Error>("{} failed: {}", failed.begin(), reason);
}

void throw_if_refused(const GroupState& group, const CallRecord& call) {
  const auto others = group.node_group();
  const auto reasons = others ? others->refusals() : std::string();
  if (!reasons.empty()) {
    throw_error<DesyncError>("{}: other ranks aborted {}:{}", group.whoami(), call.describe(), reasons);
  }
}

}  // namespace

void rethrow_as_ours(const std::exception_ptr& cause, const GroupState& group, const CallRecord& call) {
  throw_if_refused(group, call);
  const FailedCall failed{group, call};
  try {
    std::rethrow_exception(cause);
  } catch (const ArgumentError& error) {
    throw_error<ArgumentError>("{}: {}", failed.begin(), error.what());
  } catch (const PeerLost& error) {
    throw_lost(failed, error.what());
  } catch (const TimeoutError& error) {
    throw_late(failed, error.what());
  } catch (const DesyncError& error) {
    await_notes(failed);
    throw_error<DesyncError>("{}: {}. Every rank has to make the same calls in the same order{}",
                             failed.begin(), error.what(), failed.end());
  } catch (const Error& error) {
    throw_error<Error>("{} failed: {}", failed.begin(), error.what());
  } catch (const c10::NotImplementedError& error) {
    throw_error<ArgumentError>("{}: {}", failed.begin(), first_line(error.what_without_backtrace()));
  } catch (const c10::ValueError& error) {
    throw_error<ArgumentError>("{}: {}", failed.begin(), first_line(error.what_without_backtrace()));
  } catch (const std::invalid_argument& error) {
    throw_error<ArgumentError>("{}: {}", failed.begin(), first_line(error.what()));
  } catch (const c10::Error& error) {
    throw_by_text(failed, first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw_by_text(failed, first_line(error.what()));
  }
}

}  // namespace lockstep::comm
