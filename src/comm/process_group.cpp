// SPDX-License-Identifier: BSD-3-Clause
#include <functional>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/device/graph_phase.h>

#include "comm/call_form.h"
#include "comm/checks.h"
#include "comm/direct.h"
#include "comm/failure.h"
#include "comm/fingerprint.h"
#include "comm/group_state.h"
#include "comm/pending_call.h"

namespace lockstep {
namespace {

using comm::Checks;
using comm::GroupState;
using Where = std::source_location;
using Tensor = at::Tensor;
using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::SUM:
      return c10d::ReduceOp::SUM;
    case ReduceOp::AVG:
      return c10d::ReduceOp::AVG;
    case ReduceOp::PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::MIN:
      return c10d::ReduceOp::MIN;
    case ReduceOp::MAX:
      return c10d::ReduceOp::MAX;
    case ReduceOp::BAND:
      return c10d::ReduceOp::BAND;
    case ReduceOp::BOR:
      return c10d::ReduceOp::BOR;
    case ReduceOp::BXOR:
      return c10d::ReduceOp::BXOR;
  }
  return c10d::ReduceOp::UNUSED;
}

// What the backend sees of a tensor: no gradient, complex as pairs of reals. Views cost more than a small
// call, so there are none where the tensor can go as it is.
Tensor as_sent(const Tensor& tensor) {
  const Tensor plain = tensor.requires_grad() ? tensor.detach() : tensor;
  return plain.is_complex() ? at::view_as_real(plain) : plain;
}

// The same memory as one contiguous row, whatever the dense layout.
Tensor as_sent_flat(const Tensor& tensor) {
  const bool is_row = tensor.dim() == 1 && tensor.is_contiguous();
  if (is_row && !tensor.requires_grad() && !tensor.is_complex()) return tensor;
  const Tensor plain = tensor.detach();
  const Tensor flat = plain.is_contiguous() ? plain.view({-1})
                                            : plain.as_strided({plain.numel()}, {1}, plain.storage_offset());
  return flat.is_complex() ? at::view_as_real(flat) : flat;
}

Tensors as_sent(const Tensors& tensors) {
  Tensors sent;
  sent.reserve(tensors.size());
  for (const auto& tensor : tensors) sent.push_back(as_sent(tensor));
  return sent;
}

struct Average {
  c10d::ReduceOp op;
  std::function<void()> finish;
};

// AVG where the backend lacks it: a sum, divided once it is there.
Average averaging(const GroupState& group, ReduceOp op, const Tensor& result) {
  if (op != ReduceOp::AVG || group.info().traits.on(result.device().type()).averages)
    return {c10d_op(op), {}};
  return {c10d::ReduceOp::SUM, [result, size = group.size()] { result.detach().div_(size); }};
}

// A call that is about to be made.
struct Described {
  CallRecord record;
  std::uint64_t layout = 0;  // see comm::layout_of()
};

Described described(CallKind kind, const Tensor& tensor, Where where, std::optional<ReduceOp> op = {},
                    int root = -1) {
  CallRecord record{.kind = kind, .op = op, .root = root, .where = where};
  if (tensor.defined()) {
    record.dtype = tensor.scalar_type();
    record.shape = tensor.sizes().vec();
  }
  return {std::move(record), comm::layout_of(tensor)};
}

// A call that does not end on a device's stream would be made while a graph is captured, and never again.
void refuse_to_be_captured(const GroupState& group, const CallRecord& record) {
  if (graph_phase() == GraphPhase::none) return;
  refuse_in_graph(fmt::format("{} over {}", record.describe(), group.backend_name()),
                  "make it outside of the step, or use NCCL and tensors on the GPU");
}

comm::IssuedCall issued(const CallRecord& record, std::uint64_t layout) {
  const bool is_message = record.kind == CallKind::send || record.kind == CallKind::recv;
  return {.number = record.number,
          .form = is_message ? 0 : comm::form_of(record.kind, record.dtype, record.shape, layout)};
}

// Numbers and records the call, hands it to the backend, and turns a refusal into our errors.
template <class Call>
Work issue(const std::shared_ptr<GroupState>& group, Described described, const Call& call,
           std::function<void()> on_success = {}) {
  auto& record = described.record;
  const auto backend = group->backend_for(record);
  const auto watch = group->watch();
  if (watch == nullptr || record.kind == CallKind::barrier) refuse_to_be_captured(*group, record);
  if (watch != nullptr) watch->throw_if_failed();
  record = group->log().add(std::move(record));
  try {
    if (group->info().check_calls) comm::compare_calls(*backend, *group, record);
    if (auto* listener = group->listener()) listener->next_call(issued(record, described.layout));
    C10dWork work = call(*backend);
    const bool on_stream = watch != nullptr && watch->add(record, work);
    if (!on_stream) refuse_to_be_captured(*group, record);
    if (!on_stream && !work->isCompleted()) group->remember(work);
    return Work(std::make_shared<comm::PendingCall>(group, std::move(record), std::move(work), on_stream,
                                                    std::move(on_success)));
  } catch (...) {
    group->log().set_state(record.number, CallState::failed);
    comm::rethrow_as_ours(std::current_exception(), *group, record);
  }
}

}  // namespace

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Backend> backend, ProcessGroupInfo info) {
  if (!backend) throw ArgumentError(fmt::format("ProcessGroup {}: its backend is a null pointer", info.name));
  state_ = std::make_shared<GroupState>(std::move(backend), std::move(info));
}

int ProcessGroup::rank() const { return state_->rank(); }
int ProcessGroup::size() const { return state_->size(); }
const std::string& ProcessGroup::name() const { return state_->info().name; }
const std::string& ProcessGroup::backend_name() const { return state_->backend_name(); }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_->info().timeout; }
std::vector<CallRecord> ProcessGroup::recent_calls() const { return state_->log().recent(); }
c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const { return state_->backend(); }
void ProcessGroup::close() const { state_->close(); }

int ProcessGroup::global_rank(int group_rank) const {
  if (group_rank < 0 || group_rank >= size()) {
    throw ArgumentError(fmt::format("{}: there is no group rank {}", state_->whoami(), group_rank));
  }
  const auto& ranks = state_->info().global_ranks;
  return ranks.empty() ? group_rank : ranks[static_cast<std::size_t>(group_rank)];
}

Work ProcessGroup::all_reduce_async(const Tensor& tensor, ReduceOp op, Where where) const {
  const Checks check(*state_, CallKind::all_reduce, where);
  check.dense(tensor, "tensor");
  check.operation(op, tensor);
  auto average = averaging(*state_, op, tensor);
  return issue(
      state_, described(CallKind::all_reduce, tensor, where, op),
      [&](c10d::Backend& backend) {
        Tensors sent{as_sent_flat(tensor)};
        return backend.allreduce(sent, {.reduceOp = average.op});
      },
      std::move(average.finish));
}

Work ProcessGroup::broadcast_async(const Tensor& tensor, int src, Where where) const {
  const Checks check(*state_, CallKind::broadcast, where);
  check.dense(tensor, "tensor");
  check.rank(src, "src");
  return issue(state_, described(CallKind::broadcast, tensor, where, {}, src), [&](c10d::Backend& backend) {
    Tensors sent{as_sent_flat(tensor)};
    return backend.broadcast(sent, {.rootRank = src});
  });
}

Work ProcessGroup::reduce_async(const Tensor& tensor, int dst, ReduceOp op, Where where) const {
  const Checks check(*state_, CallKind::reduce, where);
  check.dense(tensor, "tensor");
  check.rank(dst, "dst");
  check.operation(op, tensor);
  auto average = averaging(*state_, op, tensor);
  return issue(
      state_, described(CallKind::reduce, tensor, where, op, dst),
      [&](c10d::Backend& backend) {
        Tensors sent{as_sent_flat(tensor)};
        return backend.reduce(sent, {.reduceOp = average.op, .rootRank = dst});
      },
      std::move(average.finish));
}

Work ProcessGroup::all_gather_async(const Tensors& output, const Tensor& input, Where where) const {
  const Checks check(*state_, CallKind::all_gather, where);
  check.contiguous(input, "input");
  check.one_per_rank(output, "output");
  check.gathered(output, input);
  return issue(state_, described(CallKind::all_gather, input, where), [&](c10d::Backend& backend) {
    std::vector<Tensors> outputs{as_sent(output)};
    Tensors inputs{as_sent(input)};
    return backend.allgather(outputs, inputs);
  });
}

Work ProcessGroup::all_gather_into_tensor_async(const Tensor& output, const Tensor& input,
                                                Where where) const {
  const Checks check(*state_, CallKind::all_gather_into_tensor, where);
  check.contiguous(input, "input");
  check.contiguous(output, "output");
  check.whole_of(output, "output", input, "input");
  return issue(state_, described(CallKind::all_gather_into_tensor, input, where),
               [&](c10d::Backend& backend) {
                 Tensor whole = as_sent_flat(output);
                 Tensor part = as_sent_flat(input);
                 return backend._allgather_base(whole, part);
               });
}

Work ProcessGroup::gather_async(const Tensor& input, const Tensors& output, int dst, Where where) const {
  const Checks check(*state_, CallKind::gather, where);
  check.contiguous(input, "input");
  check.rank(dst, "dst");
  if (dst == rank()) {
    check.one_per_rank(output, "output");
    for (const auto& tensor : output) check.same_as(tensor, "an output", input, "input");
  } else {
    check.empty_off_root(output, "output", "dst", dst);
  }
  return issue(state_, described(CallKind::gather, input, where, {}, dst), [&](c10d::Backend& backend) {
    std::vector<Tensors> outputs;
    if (dst == rank()) outputs.push_back(as_sent(output));
    Tensors inputs{as_sent(input)};
    return backend.gather(outputs, inputs, {.rootRank = dst});
  });
}

Work ProcessGroup::scatter_async(const Tensor& output, const Tensors& input, int src, Where where) const {
  const Checks check(*state_, CallKind::scatter, where);
  check.contiguous(output, "output");
  check.rank(src, "src");
  if (src == rank()) {
    check.one_per_rank(input, "input");
    for (const auto& tensor : input) check.same_as(tensor, "an input", output, "output");
  } else {
    check.empty_off_root(input, "input", "src", src);
  }
  return issue(state_, described(CallKind::scatter, output, where, {}, src), [&](c10d::Backend& backend) {
    std::vector<Tensors> inputs;
    if (src == rank()) inputs.push_back(as_sent(input));
    Tensors outputs{as_sent(output)};
    return backend.scatter(outputs, inputs, {.rootRank = src});
  });
}

Work ProcessGroup::reduce_scatter_async(const Tensor& output, const Tensors& input, ReduceOp op,
                                        Where where) const {
  const Checks check(*state_, CallKind::reduce_scatter, where);
  check.contiguous(output, "output");
  check.one_per_rank(input, "input");
  for (const auto& tensor : input) check.same_as(tensor, "an input", output, "output");
  check.operation(op, output);
  auto average = averaging(*state_, op, output);
  return issue(
      state_, described(CallKind::reduce_scatter, output, where, op),
      [&](c10d::Backend& backend) {
        Tensors outputs{as_sent(output)};
        std::vector<Tensors> inputs{as_sent(input)};
        return backend.reduce_scatter(outputs, inputs, {.reduceOp = average.op});
      },
      std::move(average.finish));
}

Work ProcessGroup::reduce_scatter_tensor_async(const Tensor& output, const Tensor& input, ReduceOp op,
                                               Where where) const {
  const Checks check(*state_, CallKind::reduce_scatter_tensor, where);
  check.contiguous(output, "output");
  check.contiguous(input, "input");
  check.whole_of(input, "input", output, "output");
  check.operation(op, output);
  auto average = averaging(*state_, op, output);
  return issue(
      state_, described(CallKind::reduce_scatter_tensor, output, where, op),
      [&](c10d::Backend& backend) {
        Tensor part = as_sent_flat(output);
        Tensor whole = as_sent_flat(input);
        return backend._reduce_scatter_base(part, whole, {.reduceOp = average.op});
      },
      std::move(average.finish));
}

Work ProcessGroup::all_to_all_async(const Tensors& output, const Tensors& input, Where where) const {
  const Checks check(*state_, CallKind::all_to_all, where);
  check.one_per_rank(output, "output");
  check.one_per_rank(input, "input");
  for (const auto& tensor : input) check.same_dtype(tensor, "an input", input.front(), "input[0]");
  for (const auto& tensor : output) check.same_dtype(tensor, "an output", input.front(), "input[0]");
  const auto own = static_cast<std::size_t>(rank());
  check.same_as(output[own], "output[rank]", input[own], "input[rank]");
  return issue(state_, described(CallKind::all_to_all, input.front(), where), [&](c10d::Backend& backend) {
    Tensors outputs = as_sent(output);
    Tensors inputs = as_sent(input);
    return backend.alltoall(outputs, inputs);
  });
}

Work ProcessGroup::all_to_all_single_async(const Tensor& output, const Tensor& input,
                                           const std::vector<std::int64_t>& output_split_sizes,
                                           const std::vector<std::int64_t>& input_split_sizes,
                                           Where where) const {
  const Checks check(*state_, CallKind::all_to_all_single, where);
  check.contiguous(output, "output");
  check.contiguous(input, "input");
  check.same_dtype(output, "output", input, "input");
  check.splits(output_split_sizes, "output_split_sizes", output, "output");
  check.splits(input_split_sizes, "input_split_sizes", input, "input");
  return issue(state_, described(CallKind::all_to_all_single, input, where), [&](c10d::Backend& backend) {
    Tensor to = as_sent(output);
    Tensor from = as_sent(input);
    auto to_rows = output_split_sizes;
    auto from_rows = input_split_sizes;
    return backend.alltoall_base(to, from, to_rows, from_rows);
  });
}

Work ProcessGroup::send_async(const Tensor& tensor, int dst, int tag, Where where) const {
  const comm::DirectCall call{
      .kind = CallKind::send, .inputs = tensor, .peer = dst, .tag = tag, .waits = false};
  if (auto work = comm::send_directly(state_, call, where)) return *std::move(work);
  const Checks check(*state_, CallKind::send, where);
  check.dense(tensor, "tensor");
  check.peer(dst, "dst");
  check.tag(tag);
  return issue(state_, described(CallKind::send, tensor, where), [&](c10d::Backend& backend) {
    Tensors sent{as_sent_flat(tensor)};
    return backend.send(sent, dst, tag);
  });
}

Work ProcessGroup::recv_async(const Tensor& tensor, std::optional<int> src, int tag, Where where) const {
  const Checks check(*state_, CallKind::recv, where);
  check.dense(tensor, "tensor");
  if (src) check.peer(*src, "src");
  check.tag(tag);
  return issue(state_, described(CallKind::recv, tensor, where), [&](c10d::Backend& backend) {
    Tensors sent{as_sent_flat(tensor)};
    return src ? backend.recv(sent, *src, tag) : backend.recvAnysource(sent, tag);
  });
}

void ProcessGroup::monitored_barrier(std::optional<std::chrono::milliseconds> timeout, bool wait_all_ranks,
                                     Where where) const {
  const auto backend = state_->backend();
  auto& log = state_->log();
  const auto record = log.add(described(CallKind::barrier, {}, where).record);
  if (auto* listener = state_->listener()) listener->next_call(issued(record, 0));
  log.set_awaited(record.number);
  try {
    c10d::BarrierOptions options;
    options.timeout = timeout.value_or(this->timeout());
    backend->monitoredBarrier(options, wait_all_ranks);
  } catch (...) {
    log.set_state(record.number, CallState::failed);
    comm::rethrow_as_ours(std::current_exception(), *state_, record);
  }
  log.set_state(record.number, CallState::completed);
  log.set_awaited(0);
}

Work ProcessGroup::barrier_async(Where where) const {
  return issue(state_, described(CallKind::barrier, {}, where),
               [](c10d::Backend& backend) { return backend.barrier(); });
}

}  // namespace lockstep
