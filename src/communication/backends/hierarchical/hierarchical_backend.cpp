// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <functional>

#include <c10/util/ScopeExit.h>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "backends/hierarchical/call_queue.h"
#include "backends/hierarchical/host_collectives.h"
#include "backends/hierarchical/legs.h"
#include "backends/hierarchical/messages.h"
#include "base/process_state.h"
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
        collectives({layout, legs.host, legs.lanes}, legs.connect_all, legs.peers) {}

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

// A collective on the backend's thread.
class QueuedCollective final : public QueuedCall {
 public:
  QueuedCollective(const Call& call, std::shared_ptr<Parts> parts)
      : QueuedCall(call), parts_(std::move(parts)) {}

 private:
  void make() override {
    const auto parts = std::move(parts_);  // until the call has ended
    const auto end = c10::make_scope_exit([this] { end_event(); });
    parts->collectives.run(call());
  }

  std::shared_ptr<Parts> parts_;
};

// See Note [Hierarchical collectives] and Note [Messages over Gloo]. Messages and the calls that have nothing
// to gain from shared memory use the network between all ranks: a receive from any rank could not wait for
// shared memory and the network at once. Threads: as for shm.
class HierarchicalBackend final : public comm::FromC10d {
 public:
  HierarchicalBackend(const HostLayout& layout, Legs legs, BackendTraits traits,
                      std::chrono::milliseconds timeout)
      : FromC10d(layout.rank(), layout.size(), "hierarchical", std::move(traits), timeout),
        parts_(std::make_shared<Parts>(layout, std::move(legs))) {
    if (parts_->legs.network == "gloo")
      messages_ = std::make_shared<Messages>(parts_->flat, layout.rank(), layout.size());
  }

  // Calls under way go on.
  ~HierarchicalBackend() override {
    if (mark_.is_in_child()) {
      // The threads that the destructors would wait for do not exist here.
      new std::shared_ptr(std::move(parts_));
      new std::shared_ptr(std::move(queue_));
      new std::shared_ptr(std::move(messages_));
      return;
    }
    // Gloo waits for its calls, but the interpreter must not.
    if (has_gathered_ && comm::GilUse::have_ended()) new c10::intrusive_ptr(parts_->legs.flat.backend);
    queue_->end();
    if (messages_) messages_->end();
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
  // The other ranks of this host go on without this one; the network cannot.
  void leave() override {
    if (mark_.is_in_child()) return;
    const auto host = backend_unless_closed(*parts_->legs.host);
    if (auto* shared = dynamic_cast<FromC10d*>(host.get())) shared->leave();
    parts_->for_each([&](c10d::Backend& leg) {
      if (&leg != host.get()) leg.abort();
    });
  }
  void shutdown() override {
    if (!mark_.is_in_child()) parts_->for_each([](c10d::Backend& leg) { leg.shutdown(); });
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return parts_->legs.host->backend()->allocateTensor(size, options);
  }

  OperationPtr start(const Call& call, Report report) override {
    auto limited = call;
    limited.timeout = limit_of(call);
    const bool is_message = comm::is_message(call.kind);
    if (messages_ && (is_message || call.monitored)) {
      report(CallStage::may_block);
      if (is_message) return messages_->start(limited);
      messages_->monitored_barrier(limited.timeout);
      return nullptr;
    }
    if (!HostCollectives::can_run(call)) {
      has_gathered_ = has_gathered_ || !is_message;
      return parts_->flat->start(call, report);
    }
    if (!call.blocking) {
      auto queued = std::make_shared<QueuedCollective>(limited, parts_);
      CallQueue::add(queue_, queued);
      return queued;
    }
    CallQueue::QueuePlace place(*queue_);
    report(CallStage::may_block);
    const comm::ProfilerEvent event("hierarchical", call);
    place.await();
    parts_->collectives.run(limited);
    return nullptr;
  }

 private:
  std::shared_ptr<Parts> parts_;
  std::shared_ptr<Messages> messages_;  // over Gloo
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
