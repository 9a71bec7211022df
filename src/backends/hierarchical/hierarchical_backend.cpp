// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "backends/hierarchical/host_collectives.h"
#include "comm/from_c10d.h"
#include "comm/profiler_event.h"
#include "comm/to_c10d.h"
#include "node/node_group.h"

namespace lockstep::backends {
namespace {

using comm::Call;
using comm::CallStage;
using comm::OperationPtr;
using comm::Report;

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

  void run(const HostCollectives& collectives) {
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

  // The parts of the call have limits of their own, so it ends without one here.
  void wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    const auto is_done = [this] { return is_done_; };
    if (timeout == kNoTimeout) {
      done_.wait(lock, is_done);
    } else if (!done_.wait_for(lock, timeout, is_done)) {
      throw TimeoutError(fmt::format("it is in progress after {} ms", timeout.count()));
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  bool is_completed() override {
    const std::lock_guard lock(mutex_);
    return is_done_;
  }

 private:
  KeptCall kept_;
  comm::ProfilerEvent event_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::exception_ptr failure_;
};

// Runs calls one after another, so that the network is used while the caller computes.
class CallThread {
 public:
  explicit CallThread(const HostCollectives& collectives) : collectives_(collectives) {}

  std::shared_ptr<QueuedCall> add(const Call& call) {
    auto queued = std::make_shared<QueuedCall>(call);
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
    queue_.push_back(queued);
    changed_.notify_all();
    return queued;
  }

  // Runs a call on this thread, after those before it.
  void run(const Call& call) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty(); });
    lock.unlock();
    collectives_.run(call);
  }

 private:
  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !queue_.empty(); })) {
      const auto call = queue_.front();
      lock.unlock();
      call->run(collectives_);
      lock.lock();
      queue_.pop_front();
      changed_.notify_all();
    }
  }

  const HostCollectives& collectives_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<QueuedCall>> queue_;  // the first one is being run
  std::jthread thread_;                            // started by the first asynchronous call
};

struct Legs {
  ProcessGroup host;
  std::optional<ProcessGroup> lane;
  BackendHandle flat;  // all ranks, over the network
};

// See Note [Hierarchical collectives]. Messages and the calls that have nothing to gain from shared memory
// use the network between all ranks. Threads: as for shm.
class HierarchicalBackend final : public comm::FromC10d {
 public:
  HierarchicalBackend(const HostLayout& layout, Legs legs, BackendTraits traits,
                      std::chrono::milliseconds timeout)
      : FromC10d(layout.rank(), layout.size(), "hierarchical", std::move(traits), timeout),
        legs_(std::move(legs)),
        flat_(comm::calls_of(legs_.flat.backend, legs_.flat.traits)),
        collectives_(layout, legs_.host, legs_.lane),
        thread_(collectives_) {}

  const std::string getBackendName() const override { return "hierarchical"; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    FromC10d::setTimeout(timeout);
    for_each_leg([timeout](c10d::Backend& leg) { leg.setTimeout(timeout); });
  }
  void abort() override {
    for_each_leg([](c10d::Backend& leg) { leg.abort(); });
  }
  void shutdown() override {
    for_each_leg([](c10d::Backend& leg) { leg.shutdown(); });
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return legs_.host.backend()->allocateTensor(size, options);
  }

  OperationPtr start(const Call& call, Report report) override {
    if (!HostCollectives::can_run(call)) return flat_->start(call, report);
    if (!call.blocking) return thread_.add(call);
    report(CallStage::may_block);
    const comm::ProfilerEvent event("hierarchical", call);
    thread_.run(call);
    return nullptr;
  }

 private:
  // For all legs, even if one throws.
  void for_each_leg(const std::function<void(c10d::Backend&)>& action) {
    std::vector<c10::intrusive_ptr<c10d::Backend>> legs{legs_.flat.backend, legs_.host.backend()};
    if (legs_.lane) legs.push_back(legs_.lane->backend());
    std::exception_ptr failure;
    for (const auto& leg : legs) {
      try {
        action(*leg);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

  Legs legs_;
  std::shared_ptr<comm::CallBackend> flat_;
  HostCollectives collectives_;
  CallThread thread_;
};

BackendRequest leg_request(const BackendRequest& whole, const std::string& name,
                           const std::vector<int>& ranks) {
  auto part = whole;
  part.store = c10::make_intrusive<c10d::PrefixStore>(name, whole.store);
  part.rank = static_cast<int>(std::ranges::find(ranks, whole.rank) - ranks.begin());
  part.size = static_cast<int>(ranks.size());
  part.group_name = fmt::format("{}, {}", whole.group_name, name);
  part.key += "/" + name;
  return part;
}

ProcessGroup group_of(const BackendHandle& handle, const BackendRequest& request,
                      const std::vector<int>& ranks) {
  return {handle.backend,
          {.name = request.group_name,
           .global_ranks = ranks,
           .timeout = request.timeout,
           .traits = handle.traits,
           .node_group = handle.node_group}};
}

ProcessGroup connect_host(const BackendRequest& request, const HostLayout& layout) {
  const auto& ranks = layout.members(layout.host());
  auto part = leg_request(request, fmt::format("host {}", layout.host()), ranks);
  part.one_host = true;
  const auto handle = create_shm(part);
  handle.node_group->set_shown_ranks(ranks);
  return group_of(handle, part, ranks);
}

std::optional<ProcessGroup> connect_lane(const BackendRequest& request, const HostLayout& layout) {
  if (layout.local_rank() >= layout.lanes()) return std::nullopt;
  const auto ranks = layout.lane(layout.local_rank());
  const auto part = leg_request(request, fmt::format("lane {}", layout.local_rank()), ranks);
  return group_of(create_gloo(part), part, ranks);
}

BackendTraits hierarchical_traits(const Legs& legs) {
  auto traits = legs.flat.traits;  // fewer element types than shm
  traits.averages = true;
  return traits;
}

}  // namespace

BackendHandle create_hierarchical(const BackendRequest& request) {
  const HostLayout layout(request.hosts, request.rank);
  if (layout.hosts() == 1) return create_shm(request);
  std::vector<int> all(static_cast<std::size_t>(request.size));
  std::iota(all.begin(), all.end(), 0);
  Legs legs{.host = connect_host(request, layout),
            .lane = connect_lane(request, layout),
            .flat = create_gloo(leg_request(request, "network", all))};
  const auto traits = hierarchical_traits(legs);
  return {
      .backend = c10::make_intrusive<HierarchicalBackend>(layout, std::move(legs), traits, request.timeout),
      .traits = traits};
}

}  // namespace lockstep::backends
