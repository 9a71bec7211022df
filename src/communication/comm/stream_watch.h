// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <lockstep/base/mutex.h>
#include <lockstep/comm/backend.h>
#include <lockstep/node/call_record.h>

#include "graphs/revocable_graph.h"

namespace lockstep::comm {

class GroupState;

// A backend whose calls may end on a device's stream. Waiting for such a Work makes the stream wait, not the
// host, so StreamWatch detects a call that fails or never ends.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  virtual bool ends_on_stream(const c10d::Work& work) const = 0;
  // A handle of the call for another thread that asks whether it has ended; keeps no tensor alive after
  // free_tensors(). Null for a call that is captured into a graph, because it does not run now.
  virtual c10::intrusive_ptr<c10d::Work> observer_of(const c10::intrusive_ptr<c10d::Work>& work) const = 0;
  // Called when the caller has dropped its handle of the call: an observer may still hold `work`, but no
  // tensor.
  virtual void free_tensors(c10d::Work& /*work*/) const {}
  // Whether the caller's wait() returns only when the device has finished the call.
  virtual bool waits_on_host() const { return false; }
  // Ends when the work that is now queued on the current stream is complete.
  virtual c10::intrusive_ptr<c10d::Work> mark_stream() const = 0;
  // Called once by the thread that asks.
  virtual void prepare_observing_thread() const = 0;
};

// Watches the calls of one group that end on a device's stream, in its own thread. Records the end of each
// call. When a call fails, exceeds the group's timeout or loses a rank, it ends all calls and keeps the
// failure for the next call. Safe from any thread.
class StreamWatch : public std::enable_shared_from_this<StreamWatch> {
 public:
  // Both must live until stop() has returned. `abort` ends the calls in progress; it may block.
  StreamWatch(GroupState& group, const StreamBackend& backend, std::function<void()> abort);
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // Ends the watch.
  void stop();
  // Returns whether `work` ends on a stream. If so, watches it from now on or, if it is captured into a
  // graph, at each replay of the graph.
  bool add(const CallRecord& record, const c10::intrusive_ptr<c10d::Work>& work);
  bool waits_on_host() const { return backend_.waits_on_host(); }
  // To call when the caller has dropped its handle of a call that ends on a stream.
  void free_tensors(c10d::Work& work) const { backend_.free_tensors(work); }
  // Throws the failure; a stream that waited for the failed call continues with invalid data.
  void throw_if_failed() const;
  // Whether all calls have succeeded; waits for this at most for `limit`.
  bool drain(std::chrono::milliseconds limit);
  // Destroys the group's graphs; replays throw `reason` from then on. May wait for the device.
  void revoke_graphs(const std::exception_ptr& reason);

 private:
  struct Entry {
    std::uint64_t id = 0;
    CallRecord record;
    c10::intrusive_ptr<c10d::Work> observer;
  };

  void run();
  void watch(const CallRecord& record, c10::intrusive_ptr<c10d::Work> observer);
  void watch_replay(CallRecord record);
  // Polls all calls in progress, without the lock.
  void look();
  void look_once();
  void look_at(const Entry& oldest);
  void drop_ended();
  std::shared_ptr<const Entry> oldest() const;
  void fail(const Entry& entry, const std::exception_ptr& cause);
  void keep(const std::shared_ptr<RevocableGraph>& graph);
  void end_everything(const std::exception_ptr& reason);

  GroupState& group_;
  const StreamBackend& backend_;
  std::function<void()> abort_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<const Entry>> under_way_ LOCKSTEP_GUARDED_BY(mutex_);  // by id
  std::uint64_t last_id_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<RevocableGraph>> graphs_ LOCKSTEP_GUARDED_BY(mutex_);  // that hold calls
  std::exception_ptr failure_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
