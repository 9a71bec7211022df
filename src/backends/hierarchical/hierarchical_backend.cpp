// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "backends/hierarchical/host_collectives.h"
#include "backends/hierarchical/legs.h"
#include "base/deadline.h"
#include "base/fork_mark.h"
#include "base/wait_check.h"
#include "comm/from_c10d.h"
#include "comm/gil_use.h"
#include "comm/profiler_event.h"
#include "comm/to_c10d.h"

namespace lockstep::backends {
namespace {

using comm::Call;
using comm::CallStage;
using comm::OperationPtr;
using comm::Report;

constexpr std::chrono::milliseconds kLook{20};  // of a wait, at what may end it

// A copy of a call that keeps its tensors.
class KeptCall {
 public:
  explicit KeptCall(const Call& call)
      : call_(call), inputs_(call.inputs.vec()), outputs_(call.outputs.vec()) {
    call_.inputs = inputs_;
    call_.outputs = outputs_;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;
  const Call& call() const { return call_; }

 private:
  Call call_;
  std::vector<at::Tensor> inputs_, outputs_;
};

// nullptr: a call has failed, which closes its legs.
c10::intrusive_ptr<c10d::Backend> backend_unless_closed(const comm::GroupState& leg) {
  try {
    return leg.backend();
  } catch (const Error&) {
    return {};
  }
}

// The groups that the calls use.
struct Parts {
  Parts(const HostLayout& layout, Legs legs_of_rank)
      : legs(std::move(legs_of_rank)),
        flat(comm::calls_of(legs.flat.backend, legs.flat.traits)),
        collectives(layout, legs.host, legs.lanes, legs.connect_all, legs.peers) {}

  // For all legs, even if one throws.
  void for_each(const std::function<void(c10d::Backend&)>& action) const {
    std::exception_ptr failure;
    const auto act = [&](const auto& backend) {
      try {
        action(*backend);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    act(legs.flat.backend);
    auto groups = legs.lanes;
    groups.push_back(legs.host);
    if (auto all = collectives.all_to_all_leg()) groups.push_back(std::move(all));
    for (const auto& group : groups)
      if (const auto backend = backend_unless_closed(*group)) act(backend);
    if (failure) std::rethrow_exception(failure);
  }

  Legs legs;
  std::shared_ptr<comm::CallBackend> flat;
  HostCollectives collectives;
};

// A call for the backend's thread.
class QueuedCall final : public comm::Operation {
 public:
  QueuedCall(const Call& call, std::shared_ptr<Parts> parts)
      : kept_(call), parts_(std::move(parts)), event_("hierarchical", call) {}

  void run() {
    std::exception_ptr failure;
    try {
      parts_->collectives.run(kept_.call());
    } catch (...) {
      failure = std::current_exception();
    }
    event_.end();
    // Before the waiting thread continues, which may end the process.
    parts_.reset();
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    is_done_ = true;
    done_.notify_all();
  }

  // The call has a limit of its own, so it ends without one here.
  void wait(std::chrono::milliseconds timeout) override { wait(timeout, timeout); }
  void end_wait(std::chrono::milliseconds timeout) override { wait(std::chrono::milliseconds(0), timeout); }

  bool is_completed() override {
    if (mark_.is_in_child()) return true;
    const std::lock_guard lock(mutex_);
    return is_done_;
  }

 private:
  // The last part of a wait.
  void wait(std::chrono::milliseconds rest, std::chrono::milliseconds whole) {
    mark_.refuse_wait_in_child();
    const Deadline deadline(rest);
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, whole == kNoTimeout ? kLook : std::min(kLook, deadline.remaining()),
                           [this] { return is_done_; })) {
      if (whole != kNoTimeout && deadline.expired())
        throw TimeoutError(fmt::format("it is in progress after {} ms", whole.count()));
      lock.unlock();
      check_wait();
      lock.lock();
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  KeptCall kept_;
  std::shared_ptr<Parts> parts_;  // until the call has ended
  comm::ProfilerEvent event_;
  ForkMark mark_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::exception_ptr failure_;
};

// Makes calls one after another, in the order of add() and Turn(): those of add() on a thread, so that the
// network is used while the caller computes.
//
// Dropping a call may drop a tensor that has a Python object, which needs Python's GIL. The thread does so
// without the mutex, because a caller may have the GIL. For the same reason end() does not wait for it: DDP's
// reducer drops its group with the GIL. So the thread shares the queue, and its calls share the parts.
class CallQueue {
 public:
  static std::shared_ptr<QueuedCall> add(const std::shared_ptr<CallQueue>& queue,
                                         std::shared_ptr<QueuedCall> call) {
    const std::lock_guard lock(queue->mutex_);
    if (!queue->thread_.joinable()) queue->thread_ = std::thread([queue] { queue->serve(); });
    queue->calls_.push_back(call);
    queue->changed_.notify_all();
    return call;
  }

  // The thread ends after the calls of the queue; no other is added.
  void end() {
    std::unique_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
    if (!thread_.joinable()) return;
    const bool is_over = is_idle_ && calls_.empty();
    lock.unlock();
    is_over ? thread_.join() : thread_.detach();
  }

  // The place of a call that the caller's thread makes.
  class Turn {
   public:
    explicit Turn(CallQueue& queue) : queue_(queue) {
      const std::lock_guard lock(queue.mutex_);
      place_ = &queue.calls_.emplace_back();
    }
    ~Turn() {
      await();
      const std::lock_guard lock(queue_.mutex_);
      queue_.calls_.pop_front();
      queue_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Until the calls before it have ended.
    void await() {
      std::unique_lock lock(queue_.mutex_);
      queue_.changed_.wait(lock, [this] { return &queue_.calls_.front() == place_; });
    }

   private:
    CallQueue& queue_;
    const std::shared_ptr<QueuedCall>* place_;
  };

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      is_idle_ = true;
      changed_.wait(lock, [this] { return ends_ || has_call(); });
      if (!has_call()) return;
      is_idle_ = false;
      auto call = calls_.front();
      lock.unlock();
      call->run();
      lock.lock();
      calls_.pop_front();
      changed_.notify_all();
      lock.unlock();
      if (!drop(std::move(call))) return;
      lock.lock();
    }
  }

  // False if the interpreter ends.
  static bool drop(std::shared_ptr<QueuedCall> call) {
    const comm::GilUse now;
    if (!now.is_allowed()) {
      new std::shared_ptr(std::move(call));
      return false;
    }
    call.reset();
    return true;
  }

  bool has_call() const { return !calls_.empty() && calls_.front(); }

  std::mutex mutex_;
  std::condition_variable changed_;
  // The first one is being made; null: by the caller's thread.
  std::deque<std::shared_ptr<QueuedCall>> calls_;
  std::thread thread_;  // started by the first asynchronous call
  bool is_idle_ = false;
  bool ends_ = false;
};

// See Note [Hierarchical collectives]. Messages and the calls that have nothing to gain from shared memory
// use the network between all ranks: a receive from any rank could not wait for shared memory and the network
// at once. Threads: as for shm.
class HierarchicalBackend final : public comm::FromC10d {
 public:
  HierarchicalBackend(const HostLayout& layout, Legs legs, BackendTraits traits,
                      std::chrono::milliseconds timeout)
      : FromC10d(layout.rank(), layout.size(), "hierarchical", std::move(traits), timeout),
        parts_(std::make_shared<Parts>(layout, std::move(legs))) {}

  // Calls under way go on.
  ~HierarchicalBackend() override {
    if (mark_.is_in_child()) {
      // The threads that the destructors would wait for do not exist here.
      new std::shared_ptr(std::move(parts_));
      new std::shared_ptr(std::move(queue_));
      return;
    }
    // Gloo waits for its calls, but the interpreter must not.
    if (has_gathered_ && comm::GilUse::have_ended()) new c10::intrusive_ptr(parts_->legs.flat.backend);
    queue_->end();
  }
  HierarchicalBackend(const HierarchicalBackend&) = delete;
  HierarchicalBackend& operator=(const HierarchicalBackend&) = delete;

  const std::string getBackendName() const override { return "hierarchical"; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    FromC10d::setTimeout(timeout);
    parts_->legs.flat.backend->setTimeout(timeout);  // calls over the others have limits of their own
  }
  void abort() override {
    if (!mark_.is_in_child()) parts_->for_each([](c10d::Backend& leg) { leg.abort(); });
  }
  void shutdown() override {
    if (!mark_.is_in_child()) parts_->for_each([](c10d::Backend& leg) { leg.shutdown(); });
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return parts_->legs.host->backend()->allocateTensor(size, options);
  }

  OperationPtr start(const Call& call, Report report) override {
    if (!HostCollectives::can_run(call)) {
      if (!comm::is_message(call.kind)) has_gathered_ = true;
      return parts_->flat->start(call, report);
    }
    auto limited = call;
    limited.timeout = limit_of(call);
    if (!call.blocking) return CallQueue::add(queue_, std::make_shared<QueuedCall>(limited, parts_));
    CallQueue::Turn turn(*queue_);
    report(CallStage::may_block);
    const comm::ProfilerEvent event("hierarchical", call);
    turn.await();
    parts_->collectives.run(limited);
    return nullptr;
  }

 private:
  std::shared_ptr<Parts> parts_;
  std::shared_ptr<CallQueue> queue_ = std::make_shared<CallQueue>();
  ForkMark mark_;
  std::atomic<bool> has_gathered_{false};  // or made another collective over the network between all ranks
};

BackendTraits hierarchical_traits(const Legs& legs) {
  auto traits = legs.flat.traits;  // may have fewer element types than shm
  traits.averages = true;
  traits.notices_death = false;
  traits.uneven_all_gather = false;
  return traits;
}

}  // namespace

BackendHandle create_hierarchical(const BackendRequest& request) {
  const HostLayout layout(request.hosts, request.rank);
  if (layout.hosts() == 1) return create_shm(request);
  auto legs = connect_legs(request, layout);
  const auto traits = hierarchical_traits(legs);
  return {
      .backend = c10::make_intrusive<HierarchicalBackend>(layout, std::move(legs), traits, request.timeout),
      .traits = traits};
}

}  // namespace lockstep::backends
