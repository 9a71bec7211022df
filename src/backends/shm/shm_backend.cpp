// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/shm_backend.h"

#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "backends/shm/direct_request.h"
#include "backends/shm/tensor_request.h"

namespace lockstep::backends {
namespace {

using shm::copying;
using shm::element_of;
using shm::Kind;
using shm::reducing;
using shm::Request;
using shm::source_of;
using shm::source_parts;
using shm::sources_of;
using shm::target_of;
using shm::target_parts;
using shm::targets_of;
using Tensors = ShmBackend::Tensors;

// A call that keeps its tensors alive until it is finished, waited for or not.
template <class Call>
class Keeping : public Call {
 public:
  template <class... Arguments>
  explicit Keeping(Tensors kept, Arguments&&... arguments)
      : Call(std::forward<Arguments>(arguments)...), kept_(std::move(kept)) {}

 private:
  Tensors kept_;
};

class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType op, std::shared_ptr<shm::Connection> connection,
          std::shared_ptr<shm::Call> call, std::chrono::milliseconds timeout)
      : Work(rank, op), connection_(std::move(connection)), call_(std::move(call)), timeout_(timeout) {}

  bool isCompleted() override { return connection_->engine().test(*call_); }
  bool isSuccess() const override { return call_->finished(); }
  bool wait(std::chrono::milliseconds timeout) override {
    connection_->engine().wait(*call_, timeout == kNoTimeout ? timeout_ : timeout);
    return true;
  }
  int sourceRank() const override {
    const auto* receive = dynamic_cast<const shm::Receive*>(call_.get());
    return receive != nullptr ? receive->source_rank() : -1;
  }

 private:
  std::shared_ptr<shm::Connection> connection_;
  std::shared_ptr<shm::Call> call_;
  std::chrono::milliseconds timeout_;
};

const at::Tensor& only(const Tensors& tensors, const char* what) {
  if (tensors.size() != 1) {
    throw ArgumentError(fmt::format("the shm backend takes one tensor as {}, not {}", what, tensors.size()));
  }
  return tensors.front();
}

const Tensors& only(const std::vector<Tensors>& lists, const char* what) {
  if (lists.size() != 1) {
    throw ArgumentError(fmt::format("the shm backend takes one list as {}, not {}", what, lists.size()));
  }
  return lists.front();
}

Tensors joined(const Tensors& first, const Tensors& second) {
  Tensors all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

}  // namespace

ShmBackend::ShmBackend(int rank, int size, std::shared_ptr<shm::Connection> connection,
                       std::chrono::milliseconds timeout)
    : Backend(rank, size), connection_(std::move(connection)), timeout_(timeout) {}

ShmBackend::~ShmBackend() { connection_->engine().leave(); }

// Messages may be issued by other threads than collectives.
void ShmBackend::next_call(const comm::IssuedCall& call) {
  log_number_ = call.number;
  if (call.form != 0) form_ = call.form;
}

void ShmBackend::abort() { connection_->engine().abort(); }

std::chrono::milliseconds ShmBackend::limit(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout || asked == kNoTimeout ? timeout_ : asked;
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cpu()) {
    throw ArgumentError("the shm backend allocates on the CPU, not on " + options.device().str());
  }
  auto connection = connection_;
  auto* const memory = connection->heap().allocate(static_cast<std::size_t>(size) * c10::elementSize(dtype));
  return at::from_blob(
      memory, {size}, [connection](void* start) { connection->heap().free(static_cast<std::byte*>(start)); },
      options);
}

ShmBackend::WorkPtr ShmBackend::issue(c10d::OpType op, Request request, Tensors kept,
                                      std::chrono::milliseconds timeout) {
  auto& engine = connection_->engine();
  request.log_number = log_number_;
  request.form = std::exchange(form_, 0);
  auto call = std::make_shared<Keeping<shm::Collective>>(std::move(kept), engine.team(), std::move(request));
  engine.start(call, limit(timeout));
  return c10::make_intrusive<ShmWork>(getRank(), op, connection_, std::move(call), limit(timeout));
}

bool ShmBackend::takes(const comm::DirectCall& call) const {
  return shm::fits_directly(call, getRank(), getSize());
}

ShmBackend::WorkPtr ShmBackend::call_directly(const comm::DirectCall& call, const comm::IssuedCall& issued,
                                              c10::function_ref<void()> posted) {
  if (call.kind == CallKind::send) return send_directly(call, issued.number, posted);
  if (call.kind == CallKind::recv) return receive_directly(call, posted);
  auto& engine = connection_->engine();
  const auto fill = [&](Request& request) {
    shm::fill(request, call, getSize());
    request.log_number = issued.number;
    request.form = issued.form;
  };
  // From now on the call goes on behind its caller's back, and keeps the tensors alive.
  const auto make = [&](Request request) {
    Tensors kept = call.inputs.vec();
    kept.insert(kept.end(), call.outputs.begin(), call.outputs.end());
    return std::make_shared<Keeping<shm::Collective>>(std::move(kept), engine.team(), std::move(request));
  };
  auto rest = engine.start_brief(fill, posted, make, timeout_);
  if (!rest) return {};
  return c10::make_intrusive<ShmWork>(getRank(), c10d::OpType::UNKNOWN, connection_, std::move(rest),
                                      timeout_);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors, "input");
  auto request = reducing(Kind::all_reduce, tensor, options.reduceOp);
  request.outputs = {target_of(tensor)};
  return issue(c10d::OpType::ALLREDUCE, std::move(request), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors, "input");
  auto request = copying(Kind::broadcast, tensor, static_cast<int>(options.rootRank));
  request.outputs = {target_of(tensor)};
  return issue(c10d::OpType::BROADCAST, std::move(request), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto& tensor = only(tensors, "input");
  auto request = reducing(Kind::reduce, tensor, options.reduceOp);
  request.root = static_cast<int>(options.rootRank);
  request.outputs = {target_of(tensor)};
  return issue(c10d::OpType::REDUCE, std::move(request), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const auto& input = only(inputs, "input");
  const auto& all = only(outputs, "output");
  auto request = copying(Kind::all_gather, input);
  request.inputs = {source_of(input)};
  request.outputs = targets_of(all);
  return issue(c10d::OpType::ALLGATHER, std::move(request), joined(all, inputs), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  auto request = copying(Kind::all_gather, input);
  request.inputs = {source_of(input)};
  request.outputs = target_parts(output, getSize());
  return issue(c10d::OpType::_ALLGATHER_BASE, std::move(request), {output, input}, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const auto& input = only(inputs, "input");
  auto request = copying(Kind::gather, input, static_cast<int>(options.rootRank));
  request.inputs = {source_of(input)};
  Tensors kept = inputs;
  if (getRank() == request.root) {
    request.outputs = targets_of(only(outputs, "output"));
    kept = joined(outputs.front(), inputs);
  }
  return issue(c10d::OpType::GATHER, std::move(request), std::move(kept), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const auto& output = only(outputs, "output");
  auto request = copying(Kind::scatter, output, static_cast<int>(options.rootRank));
  request.outputs = {target_of(output)};
  Tensors kept = outputs;
  if (getRank() == request.root) {
    request.inputs = sources_of(only(inputs, "input"));
    kept = joined(outputs, inputs.front());
  }
  return issue(c10d::OpType::SCATTER, std::move(request), std::move(kept), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const auto& output = only(outputs, "output");
  const auto& all = only(inputs, "input");
  auto request = reducing(Kind::reduce_scatter, output, options.reduceOp);
  request.inputs = sources_of(all);
  request.outputs = {target_of(output)};
  return issue(c10d::OpType::REDUCE_SCATTER, std::move(request), joined(all, outputs), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  auto request = reducing(Kind::reduce_scatter, output, options.reduceOp);
  request.inputs = source_parts(input, getSize());
  request.outputs = {target_of(output)};
  return issue(c10d::OpType::_REDUCE_SCATTER_BASE, std::move(request), {output, input}, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  auto request = copying(Kind::all_to_all, inputs.front());
  request.inputs = sources_of(inputs);
  request.outputs = targets_of(outputs);
  return issue(c10d::OpType::ALLTOALL, std::move(request), joined(outputs, inputs), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_sizes,
                                              std::vector<std::int64_t>& input_sizes,
                                              const c10d::AllToAllOptions& options) {
  auto request = copying(Kind::all_to_all, input);
  request.inputs = source_parts(input, getSize(), input_sizes);
  request.outputs = target_parts(output, getSize(), output_sizes);
  return issue(c10d::OpType::ALLTOALL_BASE, std::move(request), {output, input}, options.timeout);
}

std::shared_ptr<shm::Transfer> ShmBackend::start_send(const at::Tensor& tensor, int dst, int tag,
                                                      std::uint64_t number) {
  auto& engine = connection_->engine();
  engine.check();
  const std::lock_guard lock(engine.mutex());
  auto call =
      std::make_shared<Keeping<shm::Send>>(Tensors{tensor}, engine.team(), engine.mailbox(), dst, tag,
                                           element_of(tensor.scalar_type()), source_of(tensor), number);
  engine.start(call);
  return call;
}

std::shared_ptr<shm::Transfer> ShmBackend::start_receive(const at::Tensor& tensor, int src, int tag) {
  auto& engine = connection_->engine();
  engine.check();
  const std::lock_guard lock(engine.mutex());
  auto call =
      std::make_shared<Keeping<shm::Receive>>(Tensors{tensor}, engine.team(), engine.mailbox(), src, tag,
                                              element_of(tensor.scalar_type()), target_of(tensor));
  engine.start(call);
  return call;
}

ShmBackend::WorkPtr ShmBackend::send_directly(const comm::DirectCall& call, std::uint64_t number,
                                              c10::function_ref<void()> posted) {
  auto& engine = connection_->engine();
  const auto& tensor = call.inputs.front();
  const bool sent =
      engine.send_at_once(call.peer, call.tag, element_of(tensor.scalar_type()), source_of(tensor), number);
  if (sent) return {};
  posted();
  auto transfer = start_send(tensor, call.peer, call.tag, number);
  if (call.waits && engine.wait_shortly(*transfer)) return {};
  return work_of(c10d::OpType::SEND, std::move(transfer));
}

ShmBackend::WorkPtr ShmBackend::receive_directly(const comm::DirectCall& call,
                                                 c10::function_ref<void()> posted) {
  auto& engine = connection_->engine();
  const auto& tensor = call.outputs.front();
  shm::Receive receive(engine.team(), engine.mailbox(), call.peer, call.tag, element_of(tensor.scalar_type()),
                       target_of(tensor));
  if (engine.receive_soon(receive, posted)) return {};
  return work_of(c10d::OpType::RECV, start_receive(tensor, call.peer, call.tag));
}

ShmBackend::WorkPtr ShmBackend::work_of(c10d::OpType op, std::shared_ptr<shm::Transfer> transfer) {
  return c10::make_intrusive<ShmWork>(getRank(), op, connection_, std::move(transfer), timeout_);
}

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int dst, int tag) {
  auto call = start_send(only(tensors, "input"), dst, tag, log_number_);
  return work_of(c10d::OpType::SEND, std::move(call));
}

ShmBackend::WorkPtr ShmBackend::receive(const at::Tensor& tensor, int src, int tag) {
  auto call = start_receive(tensor, src, tag);
  return work_of(src < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, std::move(call));
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int src, int tag) {
  return receive(only(tensors, "output"), src, tag);
}

ShmBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(only(tensors, "output"), -1, tag);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return issue(c10d::OpType::BARRIER, {.kind = Kind::barrier}, {}, options.timeout);
}

// Names whoever is missing in any case: a barrier here waits for all and knows who has not come.
void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool) { barrier(options)->wait(); }

}  // namespace lockstep::backends
