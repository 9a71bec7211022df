// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "backends/hierarchical/host_collectives.h"
#include "backends/hierarchical/legs.h"
#include "base/deadline.h"
#include "base/wait_check.h"
#include "comm/from_c10d.h"
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

// A call for the backend's thread.
class QueuedCall final : public comm::Operation {
 public:
  explicit QueuedCall(const Call& call) : kept_(call), event_("hierarchical", call) {}

  void run(HostCollectives& collectives) {
    std::exception_ptr failure;
    try {
      collectives.run(kept_.call());
    } catch (...) {
      failure = std::current_exception();
    }
    event_.end();
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    is_done_ = true;
    done_.notify_all();
  }

  // The call has a limit of its own, so it ends without one here.
  void wait(std::chrono::milliseconds timeout) override { wait(timeout, timeout); }
  void end_wait(std::chrono::milliseconds timeout) override { wait(std::chrono::milliseconds(0), timeout); }

  bool is_completed() override {
    const std::lock_guard lock(mutex_);
    return is_done_;
  }

 private:
  // The last part of a wait.
  void wait(std::chrono::milliseconds rest, std::chrono::milliseconds whole) {
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
  comm::ProfilerEvent event_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::exception_ptr failure_;
};

// Makes calls one after another, in the order of add() and Turn(): those of add() on a thread, so that the
// network is used while the caller computes.
class CallQueue {
 public:
  explicit CallQueue(HostCollectives& collectives) : collectives_(collectives) {}

  std::shared_ptr<QueuedCall> add(const Call& call) {
    auto queued = std::make_shared<QueuedCall>(call);
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
    queue_.push_back(queued);
    changed_.notify_all();
    return queued;
  }

  // The place of a call that the caller's thread makes.
  class Turn {
   public:
    explicit Turn(CallQueue& queue) : queue_(queue) {
      const std::lock_guard lock(queue.mutex_);
      place_ = &queue.queue_.emplace_back();
    }
    ~Turn() {
      await();
      const std::lock_guard lock(queue_.mutex_);
      queue_.queue_.pop_front();
      queue_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Until the calls before it have ended.
    void await() {
      std::unique_lock lock(queue_.mutex_);
      queue_.changed_.wait(lock, [this] { return &queue_.queue_.front() == place_; });
    }

   private:
    CallQueue& queue_;
    const std::shared_ptr<QueuedCall>* place_;
  };

 private:
  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !queue_.empty() && queue_.front(); })) {
      const auto call = queue_.front();
      lock.unlock();
      call->run(collectives_);
      lock.lock();
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  HostCollectives& collectives_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  // The first one is being made; null: by the caller's thread.
  std::deque<std::shared_ptr<QueuedCall>> queue_;
  std::jthread thread_;  // started by the first asynchronous call
};

// See Note [Hierarchical collectives]. Messages and the calls that have nothing to gain from shared memory
// use the network between all ranks: a receive from any rank could not wait for shared memory and the network
// at once. Threads: as for shm.
class HierarchicalBackend final : public comm::FromC10d {
 public:
  HierarchicalBackend(const HostLayout& layout, Legs legs, BackendTraits traits,
                      std::chrono::milliseconds timeout)
      : FromC10d(layout.rank(), layout.size(), "hierarchical", std::move(traits), timeout),
        legs_(std::move(legs)),
        flat_(comm::calls_of(legs_.flat.backend, legs_.flat.traits)),
        collectives_(layout, legs_.host, legs_.lanes, legs_.connect_all, legs_.peers),
        queue_(collectives_) {}

  const std::string getBackendName() const override { return "hierarchical"; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    FromC10d::setTimeout(timeout);
    legs_.flat.backend->setTimeout(timeout);  // calls over the others have limits of their own
  }
  void abort() override {
    for_each_leg([](c10d::Backend& leg) { leg.abort(); });
  }
  void shutdown() override {
    for_each_leg([](c10d::Backend& leg) { leg.shutdown(); });
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return legs_.host->backend()->allocateTensor(size, options);
  }

  OperationPtr start(const Call& call, Report report) override {
    if (!HostCollectives::can_run(call)) return flat_->start(call, report);
    auto limited = call;
    limited.timeout = limit_of(call);
    if (!call.blocking) return queue_.add(limited);
    CallQueue::Turn turn(queue_);
    report(CallStage::may_block);
    const comm::ProfilerEvent event("hierarchical", call);
    turn.await();
    collectives_.run(limited);
    return nullptr;
  }

 private:
  // For all legs, even if one throws.
  void for_each_leg(const std::function<void(c10d::Backend&)>& action) {
    std::exception_ptr failure;
    const auto act = [&](const auto& backend_of_leg) {
      try {
        action(*backend_of_leg());
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    act([this] { return legs_.flat.backend; });
    act([this] { return legs_.host->backend(); });
    for (const auto& lane : legs_.lanes) act([&lane] { return lane->backend(); });
    if (failure) std::rethrow_exception(failure);
  }

  Legs legs_;
  std::shared_ptr<comm::CallBackend> flat_;
  HostCollectives collectives_;
  CallQueue queue_;
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
