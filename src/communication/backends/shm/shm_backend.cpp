// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/shm_backend.h"

#include <utility>

#include "backends/factories.h"
#include "backends/shm/call_request.h"
#include "base/host.h"
#include "base/throw_error.h"

namespace lockstep::backends {
namespace {

using comm::Call;
using comm::CallStage;
using comm::OperationPtr;
using comm::Report;

// A task of the engine that keeps the call's tensors alive until it is finished, waited for or not.
template <class Task>
class ShmOperation final : public Task, public comm::Operation {
 public:
  template <class... Arguments>
  ShmOperation(const Call& call, std::shared_ptr<shm::Connection> connection,
               std::chrono::milliseconds timeout, comm::ProfilerEvent event, Arguments&&... arguments)
      : Task(std::forward<Arguments>(arguments)...),
        connection_(std::move(connection)),
        timeout_(timeout),
        tensors_(comm::tensors_of(call)),
        event_(std::move(event)) {}

  void set_finished() override {
    event_.end();
    Task::set_finished();
  }
  void wait(std::chrono::milliseconds timeout) override {
    connection_->engine().wait(*this, timeout == kNoTimeout ? timeout_ : timeout);
  }
  void end_wait(std::chrono::milliseconds timeout) override {
    connection_->engine().wait(*this, timeout, timeout);
  }
  bool is_completed() override { return connection_->engine().test(*this); }
  int source_rank() const override {
    if constexpr (std::is_same_v<Task, shm::Receive>) return Task::source_rank();
    return -1;
  }

 private:
  std::shared_ptr<shm::Connection> connection_;
  std::chrono::milliseconds timeout_;
  std::vector<at::Tensor> tensors_;
  comm::ProfilerEvent event_;
};

}  // namespace

ShmBackend::ShmBackend(int rank, int size, std::shared_ptr<shm::Connection> connection,
                       std::chrono::milliseconds timeout)
    : FromC10d(rank, size, "shm", traits(), timeout), connection_(std::move(connection)) {}

ShmBackend::~ShmBackend() { connection_->engine().leave(); }

void ShmBackend::abort() { connection_->engine().abort(); }

void ShmBackend::leave() { connection_->engine().leave(comm::kLeft); }

BackendTraits ShmBackend::traits() {
  using c10::ScalarType;
  return {.devices = {c10::DeviceType::CPU},
          .dtypes = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16,
                     ScalarType::Char, ScalarType::Byte, ScalarType::Short, ScalarType::Int, ScalarType::Long,
                     ScalarType::UInt16, ScalarType::UInt32, ScalarType::UInt64, ScalarType::Bool},
          .averages = true,
          .notices_death = true,
          .compares_calls = true,
          .uneven_all_gather = true,
          .device_advice = "move it to the CPU, or use a backend for its device"};
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cpu()) {
    throw ArgumentError("the shm backend allocates on the CPU, not on " + options.device().str());
  }
  const auto heap = connection_->heap();
  auto* const memory = heap->allocate(static_cast<std::size_t>(size) * c10::elementSize(dtype));
  return at::from_blob(
      memory, {size}, [heap](void* start) { heap->free(static_cast<std::byte*>(start)); }, options);
}

std::int64_t ShmBackend::allocate_mapped(std::size_t bytes) { return connection_->allocate_mapped(bytes); }

at::Tensor ShmBackend::map(int owner, std::int64_t place, std::size_t bytes) {
  auto connection = connection_;
  return at::from_blob(
      connection->map(owner, place), {static_cast<std::int64_t>(bytes)},
      [connection](void* mapping) { shm::Connection::release(static_cast<std::byte*>(mapping)); }, at::kByte);
}

template <class Task, class... Arguments>
auto ShmBackend::make_operation(const Call& call, comm::ProfilerEvent event, Arguments&&... arguments) const {
  return std::make_shared<ShmOperation<Task>>(call, connection_, limit_of(call), std::move(event),
                                              std::forward<Arguments>(arguments)...);
}

OperationPtr ShmBackend::start(const Call& call, Report report) {
  if (call.kind == CallKind::send) return start_send(call, report);
  if (call.kind == CallKind::recv) return start_receive(call, report);
  return start_collective(call, report);
}

OperationPtr ShmBackend::start_collective(const Call& call, Report report) {
  auto& engine = connection_->engine();
  comm::ProfilerEvent event;
  const auto fill = [&](shm::Request& request) { shm::fill(request, call, getSize()); };
  const auto make = [&](shm::Request request) {
    return make_operation<shm::Collective>(call, std::move(event), engine.communicator(), std::move(request));
  };
  if (call.blocking && shm::is_eager(call, getSize())) {
    // The other ranks wait for the descriptor, so the event begins after it.
    const auto posted = [&](bool is_posted) {
      event = {"shm", call};
      report(is_posted ? CallStage::posted : CallStage::may_block);
    };
    return engine.start_eager(fill, make, posted, limit_of(call));
  }
  event = {"shm", call};
  report(CallStage::may_block);
  shm::Request request;
  fill(request);
  auto operation = make(std::move(request));
  engine.start(operation, limit_of(call));
  return operation;
}

template <class Transfer, class... Memory>
auto ShmBackend::start_transfer(const Call& call, comm::ProfilerEvent event, Memory... memory) {
  auto& engine = connection_->engine();
  const auto peer = call.peer == comm::kAnyRank ? shm::kAnyRank : call.peer;
  const auto element = shm::element_of(comm::main_tensor(call)->scalar_type());
  engine.check();
  const shm::Engine::Lock lock(engine);
  auto operation = make_operation<Transfer>(call, std::move(event), engine.communicator(), engine.mailbox(),
                                            peer, call.tag, element, memory...);
  engine.start(operation);
  return operation;
}

OperationPtr ShmBackend::start_send(const Call& call, Report report) {
  auto& engine = connection_->engine();
  const auto& tensor = call.inputs.front();
  comm::ProfilerEvent event("shm", call);
  if (shm::is_eager(call, getSize())) {
    const bool sent = engine.send_at_once(call.peer, call.tag, shm::element_of(tensor.scalar_type()),
                                          shm::source_of(tensor), call.number);
    if (sent) return nullptr;
  }
  report(CallStage::may_block);
  auto operation = start_transfer<shm::Send>(call, std::move(event), shm::source_of(tensor), call.number);
  if (call.blocking && engine.wait_shortly(*operation)) return nullptr;
  return operation;
}

OperationPtr ShmBackend::start_receive(const Call& call, Report report) {
  auto& engine = connection_->engine();
  const auto& tensor = call.outputs.front();
  comm::ProfilerEvent event("shm", call);
  if (call.blocking && call.peer != comm::kAnyRank && shm::is_eager(call, getSize())) {
    shm::Receive receive(engine.communicator(), engine.mailbox(), call.peer, call.tag,
                         shm::element_of(tensor.scalar_type()), shm::target_of(tensor));
    if (engine.receive_soon(receive, [&] { report(CallStage::may_block); })) return nullptr;
  }
  report(CallStage::may_block);
  return start_transfer<shm::Receive>(call, std::move(event), shm::target_of(tensor));
}

BackendHandle create_shm(const BackendRequest& request) {
  if (!request.one_host) {
    throw_error<RendezvousError>(request.reporter(), request.about(),
                                 "backend shm: the ranks of group {} run on different hosts; use gloo, or "
                                 "leave the backend at \"auto\"",
                                 request.group_name);
  }
  const auto heap = request.shm.heap ? request.shm.heap : shm::make_heap(request.size);
  const auto node_group = join_node_group(request, shm::Connection::part(request.size, heap));
  const int ranks = node_group->ranks_on_own_cores();
  const auto policy = request.shm.has_network ? shm::WaitPolicy::beside_network(ranks, usable_cores())
                                              : shm::WaitPolicy::for_cores(ranks, usable_cores());
  auto connection = std::make_shared<shm::Connection>(node_group, heap, policy);
  return {.backend = c10::make_intrusive<ShmBackend>(request.rank, request.size, std::move(connection),
                                                     request.timeout),
          .traits = ShmBackend::traits(),
          .node_group = node_group};
}

}  // namespace lockstep::backends
