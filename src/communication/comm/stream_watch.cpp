// SPDX-License-Identifier: BSD-3-Clause
#include "comm/stream_watch.h"

#include <algorithm>
#include <cstdlib>
#include <future>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/limits.h"
#include "comm/group_state.h"
#include "comm/peer_check.h"
#include "graphs/graph_phase.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kAbortLimit = 30s;

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// The failure of one call, with the type and text that a wait on the host would have thrown.
std::exception_ptr as_ours(const std::exception_ptr& cause, const GroupState& group, const CallRecord& call) {
  try {
    rethrow_as_ours(cause, group, call);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

StreamWatch::StreamWatch(GroupState& group, const StreamBackend& backend, std::function<void()> abort)
    : group_(group),
      backend_(backend),
      abort_(std::move(abort)),
      thread_(start_thread<std::thread>("the watch of a device", [this] { run(); })) {}

StreamWatch::~StreamWatch() { stop(); }

void StreamWatch::stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool StreamWatch::add(const CallRecord& record, const c10::intrusive_ptr<c10d::Work>& work) {
  if (!backend_.ends_on_stream(*work)) return false;
  if (auto observer = backend_.observer_of(work)) {
    watch(record, std::move(observer));
    return true;
  }
  keep(graph_under_capture());
  add_replay_action(this, [weak = weak_from_this(), record] {
    if (const auto self = weak.lock()) self->watch_replay(record);
  });
  return true;
}

void StreamWatch::keep(const std::shared_ptr<RevocableGraph>& graph) {
  if (!graph) return;
  const MutexLock lock(mutex_);
  std::erase_if(graphs_, [](const auto& other) { return other.expired(); });
  if (std::ranges::none_of(graphs_, [&](const auto& other) { return other.lock() == graph; })) {
    graphs_.push_back(graph);
  }
}

void StreamWatch::revoke_graphs(const std::exception_ptr& reason) {
  std::vector<std::weak_ptr<RevocableGraph>> graphs;
  {
    const MutexLock lock(mutex_);
    graphs.swap(graphs_);
  }
  for (const auto& weak : graphs) {
    if (const auto graph = weak.lock()) graph->revoke(reason);
  }
}

// A loop of replays makes no other call that could report the failure.
void StreamWatch::watch_replay(CallRecord record) {
  throw_if_failed();
  {
    const MutexLock lock(mutex_);
    if (stop_) return;
  }
  record.issued_at = std::chrono::steady_clock::now();
  watch(record, backend_.mark_stream());
}

void StreamWatch::watch(const CallRecord& record, c10::intrusive_ptr<c10d::Work> observer) {
  {
    const MutexLock lock(mutex_);
    under_way_.push_back(std::make_shared<const Entry>(++last_id_, record, std::move(observer)));
  }
  changed_.notify_all();
}

void StreamWatch::throw_if_failed() const {
  const MutexLock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool StreamWatch::drain(std::chrono::milliseconds limit) {
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, limit,
                    [this]() LOCKSTEP_REQUIRES(mutex_) { return under_way_.empty() || failure_; });
  return under_way_.empty() && !failure_;
}

void StreamWatch::run() {
  try {
    backend_.prepare_observing_thread();
  } catch (const std::exception& error) {
    lockstep::log(LogLevel::warning, fmt::format("{}: {}", group_.whoami(), error.what()));
  }
  MutexLock lock(mutex_);
  while (!stop_) {
    if (under_way_.empty() || failure_) {
      changed_.wait(
          mutex_, [this]() LOCKSTEP_REQUIRES(mutex_) { return stop_ || (!under_way_.empty() && !failure_); });
    } else {
      lock.unlock();
      look();
      lock.lock();
      changed_.wait_for(mutex_, kPeerCheckPeriod, [this]() LOCKSTEP_REQUIRES(mutex_) { return stop_; });
    }
  }
}

// A failed device throws at the first query.
void StreamWatch::look() {
  try {
    look_once();
  } catch (...) {
    if (const auto entry = oldest()) fail(*entry, std::current_exception());
  }
}

void StreamWatch::look_once() {
  drop_ended();
  if (const auto entry = oldest()) look_at(*entry);
}

// nullptr if no call is in progress any more.
std::shared_ptr<const StreamWatch::Entry> StreamWatch::oldest() const {
  const MutexLock lock(mutex_);
  return under_way_.empty() || failure_ ? nullptr : under_way_.front();
}

// Calls to different ranks may overtake each other, so all of them are polled. Only this thread removes
// entries.
void StreamWatch::drop_ended() {
  std::vector<std::shared_ptr<const Entry>> entries;
  {
    const MutexLock lock(mutex_);
    entries.assign(under_way_.begin(), under_way_.end());
  }
  std::vector<std::uint64_t> ended;
  for (const auto& entry : entries) {
    if (!entry->observer->isCompleted()) continue;
    if (const auto cause = entry->observer->exception()) return fail(*entry, cause);
    group_.log().set_state(entry->record.number, CallState::completed);
    ended.push_back(entry->id);
  }
  if (ended.empty()) return;
  const MutexLock lock(mutex_);
  std::erase_if(under_way_, [&](const auto& each) { return std::ranges::binary_search(ended, each->id); });
  if (under_way_.empty()) changed_.notify_all();
}

void StreamWatch::look_at(const Entry& oldest) {
  const auto timeout = group_.timeout();
  const bool is_late = std::chrono::steady_clock::now() - oldest.record.issued_at >= timeout;
  const auto others = group_.node_group();
  NodeWait{others.get(), [&] { return oldest.observer->isCompleted(); },
           late_error(is_late, timeout, " on the device")}
      .check();
}

void StreamWatch::fail(const Entry& entry, const std::exception_ptr& cause) {
  group_.log().set_state(entry.record.number, CallState::failed);
  const auto failure = as_ours(cause, group_, entry.record);
  {
    const MutexLock lock(mutex_);
    failure_ = failure;
  }
  // The host may be waiting for the device, and detects the failure only when the wait returns.
  lockstep::log(LogLevel::error, text_of(failure));
  end_everything(failure);
  changed_.notify_all();
}

// Aborting waits until no graph holds a call. Destroying a graph waits until its last replay has ended, which
// aborting causes. Both may wait for a device that does not respond any more.
void StreamWatch::end_everything(const std::exception_ptr& reason) {
  const auto deadline = std::chrono::steady_clock::now() + kAbortLimit;
  std::packaged_task<void()> abort(abort_);
  std::packaged_task<void()> revoke([this, reason] { revoke_graphs(reason); });
  auto aborted = abort.get_future();
  auto revoked = revoke.get_future();
  auto aborting = start_thread<std::thread>("the end of calls on a device", std::move(abort));
  auto revoking = start_thread<std::thread>("the end of graphs", std::move(revoke));
  if (aborted.wait_until(deadline) == std::future_status::ready &&
      revoked.wait_until(deadline) == std::future_status::ready) {
    aborting.join();
    revoking.join();
    return;
  }
  lockstep::log(
      LogLevel::error,
      fmt::format("{}: its calls could not be ended within {} s; this process ends, since nothing else "
                  "frees the device",
                  group_.whoami(), kAbortLimit.count()));
  std::abort();
}

}  // namespace lockstep::comm
