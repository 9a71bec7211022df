// SPDX-License-Identifier: BSD-3-Clause
#include "comm/to_c10d.h"

#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include "comm/emulated_reductions.h"

namespace lockstep::comm {
namespace {

using Tensor = at::Tensor;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Gloo adds the bytes of booleans, and the sum of two true ones would be 2.
ReduceOp op_of(const Call& call) {
  const bool is_boolean = has_operation(call.kind) && call.outputs.front().scalar_type() == at::kBool;
  if (is_boolean && call.op == ReduceOp::SUM) return ReduceOp::MAX;
  if (is_boolean && call.op == ReduceOp::PRODUCT) return ReduceOp::MIN;
  return call.op;
}

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) { return static_cast<c10d::ReduceOp::RedOpType>(op); }

// The tensor in the form that backends accept: without gradient, complex numbers as pairs of reals.
Tensor plain(const Tensor& tensor) {
  const Tensor detached = tensor.requires_grad() ? tensor.detach() : tensor;
  return detached.is_complex() ? at::view_as_real(detached) : detached;
}

Tensors plain(at::TensorList tensors) {
  Tensors all;
  all.reserve(tensors.size());
  for (const auto& tensor : tensors) all.push_back(plain(tensor));
  return all;
}

// The same memory as one contiguous row, whatever the dense layout.
Tensor flat(const Tensor& tensor) {
  const bool is_row = tensor.dim() == 1 && tensor.is_contiguous();
  if (is_row && !tensor.requires_grad() && !tensor.is_complex()) return tensor;
  const Tensor detached = tensor.detach();
  const Tensor row = detached.is_contiguous()
                         ? detached.view({-1})
                         : detached.as_strided({detached.numel()}, {1}, detached.storage_offset());
  return row.is_complex() ? at::view_as_real(row) : row;
}

// The list of lists that c10d expects; empty if this rank passes no list.
std::vector<Tensors> lists(at::TensorList tensors) {
  if (tensors.empty()) return {};
  return {plain(tensors)};
}

std::vector<std::int64_t> lengths_of(at::TensorList tensors) {
  std::vector<std::int64_t> lengths;
  for (const auto& tensor : tensors) lengths.push_back(tensor.numel());
  return lengths;
}

// The tensor of a message keeps its shape, which the backend's profiler events show, if it is contiguous.
Tensors one(const Tensor& tensor) { return {tensor.is_contiguous() ? plain(tensor) : flat(tensor)}; }

// c10d takes references to arguments that it does not change for us.
template <typename Argument>
Argument& passed(Argument&& temporary) {
  return temporary;
}

std::chrono::milliseconds timeout_of(const Call& call) {
  return call.timeout == kNoTimeout ? c10d::kUnsetTimeout : call.timeout;
}

c10d::BarrierOptions barrier_options(std::chrono::milliseconds timeout) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  return options;
}

class C10dOperation : public Operation {
 public:
  C10dOperation(WorkPtr work, std::function<void()> finish)
      : work_(std::move(work)), finish_(std::move(finish)) {}

  void wait(std::chrono::milliseconds timeout) override {
    if (!work_->wait(timeout)) throw std::runtime_error("it was aborted");
    if (finish_) finish_();
    finish_ = nullptr;  // but not if it threw: the next wait must not succeed
  }
  bool is_completed() override { return work_->isCompleted(); }
  int source_rank() const override { return work_->sourceRank(); }
  WorkPtr stream_work() const override { return work_; }

 private:
  WorkPtr work_;
  std::function<void()> finish_;
};

}  // namespace

ToC10d::ToC10d(c10::intrusive_ptr<c10d::Backend> backend, BackendTraits traits, bool as_given)
    : backend_(std::move(backend)),
      traits_(std::move(traits)),
      adapts_gloo_(!as_given && backend_->getBackendName() == "gloo") {}

// The call with integers in place of its numbers. wait() writes the numbers.
OperationPtr ToC10d::start_ordered(const Call& call) const {
  const auto& numbers = call.outputs.front();
  Tensors inputs;
  for (const auto& input : call.inputs) inputs.push_back(to_ordered_bits(input, call.op));
  const auto ordered = to_ordered_bits(numbers, call.op);
  auto with_integers = call;
  with_integers.inputs = inputs;
  with_integers.outputs = ordered;
  return std::make_shared<C10dOperation>(submit(with_integers, c10d_op(call.op)),
                                         [ordered, numbers] { from_ordered_bits(ordered, numbers); });
}

OperationPtr ToC10d::start(const Call& call, Report report) {
  report(CallStage::may_block);
  if (call.monitored) {
    backend_->monitoredBarrier(barrier_options(timeout_of(call)), call.wait_all_ranks);
    return nullptr;
  }
  if (call.kind == CallKind::all_to_all && adapts_gloo_) return exchange_rows(call);
  if (adapts_gloo_ && has_operation(call.kind) && compares_floats(call.op, call.outputs.front()))
    return start_ordered(call);
  std::function<void()> finish;
  auto op = c10d_op(op_of(call));
  if (has_operation(call.kind) && call.op == ReduceOp::AVG) {
    const auto& result = call.outputs.front();
    if (!traits_.on(result.device().type()).averages) {
      op = c10d::ReduceOp::SUM;
      finish = [result, size = backend_->getSize()] { divide(result, size); };
    }
  }
  return std::make_shared<C10dOperation>(submit(call, op), std::move(finish));
}

OperationPtr ToC10d::exchange_rows(const Call& call) const {
  Tensors rows;
  for (const auto& input : call.inputs) rows.push_back(input.detach().view({-1}));
  auto sent_lengths = lengths_of(call.inputs);
  auto lengths = lengths_of(call.outputs);
  auto sent = plain(at::cat(rows));
  const auto received =
      at::empty({std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})}, rows[0].options());
  auto to = plain(received);
  auto taken_lengths = lengths;  // the backend moves from it
  auto work = backend_->alltoall_base(to, sent, taken_lengths, sent_lengths, {.timeout = timeout_of(call)});
  return std::make_shared<C10dOperation>(std::move(work), [received, lengths, outputs = call.outputs.vec()] {
    const auto parts = received.split_with_sizes(lengths);
    for (std::size_t i = 0; i < parts.size(); ++i)
      outputs[i].detach().copy_(parts[i].view(outputs[i].sizes()));
  });
}

WorkPtr ToC10d::submit(const Call& call, c10d::ReduceOp op) const {
  auto& backend = *backend_;
  const auto& in = call.inputs;
  const auto& out = call.outputs;
  const auto timeout = timeout_of(call);
  switch (call.kind) {
    case CallKind::all_reduce:
      return backend.allreduce(passed(Tensors{flat(out[0])}), {.reduceOp = op, .timeout = timeout});
    case CallKind::broadcast:
      return backend.broadcast(passed(Tensors{flat(out[0])}), {.rootRank = call.root, .timeout = timeout});
    case CallKind::reduce:
      return backend.reduce(passed(Tensors{flat(out[0])}),
                            {.reduceOp = op, .rootRank = call.root, .timeout = timeout});
    case CallKind::all_gather:
      return backend.allgather(passed(lists(out)), passed(plain(in)), {.timeout = timeout});
    case CallKind::all_gather_into_tensor:
      return backend._allgather_base(passed(flat(out[0])), passed(flat(in[0])), {.timeout = timeout});
    case CallKind::gather:
      return backend.gather(passed(lists(out)), passed(plain(in)),
                            {.rootRank = call.root, .timeout = timeout});
    case CallKind::scatter:
      return backend.scatter(passed(plain(out)), passed(lists(in)),
                             {.rootRank = call.root, .timeout = timeout});
    case CallKind::reduce_scatter:
      return backend.reduce_scatter(passed(plain(out)), passed(lists(in)),
                                    {.reduceOp = op, .timeout = timeout});
    case CallKind::reduce_scatter_tensor:
      return backend._reduce_scatter_base(passed(flat(out[0])), passed(flat(in[0])),
                                          {.reduceOp = op, .timeout = timeout});
    case CallKind::all_to_all:
      return backend.alltoall(passed(plain(out)), passed(plain(in)), {.timeout = timeout});
    case CallKind::all_to_all_single:
      return backend.alltoall_base(passed(plain(out[0])), passed(plain(in[0])),
                                   passed(call.output_splits.vec()), passed(call.input_splits.vec()),
                                   {.timeout = timeout});
    case CallKind::send:
      return backend.send(passed(one(in[0])), call.peer, call.tag);
    case CallKind::recv: {
      auto tensors = one(out[0]);
      if (call.peer != kAnyRank) return backend.recv(tensors, call.peer, call.tag);
      // Gloo needs a place for one byte there.
      if (out[0].numel() == 0 && is_gloo()) tensors = {at::empty({1}, out[0].options())};
      return backend.recvAnysource(tensors, call.tag);
    }
    case CallKind::barrier:
      return backend.barrier(barrier_options(timeout));
  }
  throw std::logic_error("unknown kind of call");
}

std::shared_ptr<CallBackend> calls_of(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      const BackendTraits& traits, bool as_given) {
  auto* calls = dynamic_cast<CallBackend*>(backend.get());
  if (calls == nullptr) return std::make_shared<ToC10d>(backend, traits, as_given);
  return {calls, [backend](CallBackend*) {}};
}

}  // namespace lockstep::comm
