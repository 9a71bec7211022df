// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <thread>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
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

using Leg = HostCollectives::Leg;

struct Legs {
  Leg host;
  std::vector<Leg> lanes;
  BackendHandle flat;  // all ranks, over the network
  std::function<Leg()> connect_all;
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
        collectives_(layout, legs_.host, legs_.lanes, legs_.connect_all),
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

Leg leg_of(const BackendHandle& handle, const BackendRequest& request, const std::vector<int>& ranks) {
  return std::make_shared<comm::GroupState>(handle.backend,
                                            ProcessGroupInfo{.name = request.group_name,
                                                             .global_ranks = ranks,
                                                             .timeout = request.timeout,
                                                             .traits = handle.traits,
                                                             .node_group = handle.node_group});
}

Leg connect_host(const BackendRequest& request, const HostLayout& layout) {
  const auto& ranks = layout.members(layout.host());
  auto part = leg_request(request, fmt::format("host {}", layout.host()), ranks);
  part.one_host = true;
  const auto handle = create_shm(part);
  handle.node_group->set_shown_ranks(ranks);
  return leg_of(handle, part, ranks);
}

// Without an all-to-all of connections, whose number and whose requests to the store grow quadratically.
BackendHandle connect_on_use(BackendRequest request) {
  request.connect_on_use = true;
  return create_gloo(request);
}

// Connects the neighbours in the ring, so that each notices when the other dies, and waits for all of them.
void connect_ring(const BackendHandle& lane, const BackendRequest& request) {
  std::vector<at::Tensor> word{at::zeros({1})};
  try {
    lane.backend->allreduce(word)->wait();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(fmt::format("rank {} of {}: the hosts of group {} could not be connected: {}",
                                      request.rank, request.size, request.group_name,
                                      text.substr(0, text.find('\n'))));
  }
}

constexpr std::size_t kNamedRanks = 16;  // of a lane, in errors

// All ranks connect their lanes in ascending order, so none waits for ranks that wait for it.
std::vector<Leg> connect_lanes(const BackendRequest& request, const HostLayout& layout) {
  std::vector<Leg> lanes;
  for (int number = layout.local_rank(); number < layout.lanes(); number += layout.local_size()) {
    const auto ranks = layout.lane(number);
    auto part = leg_request(request, fmt::format("lane {}", number), ranks);
    if (ranks.size() <= kNamedRanks) part.group_name += fmt::format(" of ranks {}", fmt::join(ranks, ", "));
    const auto handle = connect_on_use(part);
    connect_ring(handle, part);
    lanes.push_back(leg_of(handle, part, ranks));
  }
  return lanes;
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
            .lanes = connect_lanes(request, layout),
            .flat = connect_on_use(leg_request(request, "network", all)),
            .connect_all = [part = leg_request(request, "all_to_all", all), all] {
              return leg_of(connect_on_use(part), part, all);
            }};
  const auto traits = hierarchical_traits(legs);
  return {
      .backend = c10::make_intrusive<HierarchicalBackend>(layout, std::move(legs), traits, request.timeout),
      .traits = traits};
}

}  // namespace lockstep::backends
