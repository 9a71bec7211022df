// SPDX-License-Identifier: BSD-3-Clause
#include "comm/from_c10d.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include "base/throw_error.h"
#include "comm/call_recorder.h"
#include "comm/composed_operations.h"
#include "comm/emulated_reductions.h"
#include "comm/inference_tensors.h"
#include "comm/message_order.h"
#include "comm/operation_work.h"
#include "comm/peer_check.h"
#include "comm/profiler_event.h"

namespace lockstep::comm {
namespace {

using Tensors = FromC10d::Tensors;
using WorkPtr = FromC10d::WorkPtr;

at::Tensor flatten(const Tensors& tensors) {
  if (tensors.empty()) throw ArgumentError("a coalesced call needs at least one tensor");
  for (const auto& tensor : tensors) {
    if (tensor.scalar_type() == tensors.front().scalar_type() && tensor.layout() == c10::kStrided) continue;
    throw ArgumentError("the tensors of a coalesced call must be dense and of one dtype");
  }
  return torch::utils::flatten_dense_tensors(tensors);
}

// Each list can take the inputs of a rank one by one, not only all of them together.
void check_same_parts(const std::vector<Tensors>& lists, const Tensors& inputs) {
  const auto describe = [](const at::Tensor& tensor) {
    return fmt::format("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  };
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    if (lists[rank].size() != inputs.size()) {
      throw_error<ArgumentError>("outputs[{}] has {} tensors, inputs {}; one for each input is needed", rank,
                                 lists[rank].size(), inputs.size());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (lists[rank][i].sizes() == inputs[i].sizes()) continue;
      throw_error<ArgumentError>("outputs[{}][{}] is {} but inputs[{}] is {}; their shapes must be the same",
                                 rank, i, describe(lists[rank][i]), i, describe(inputs[i]));
    }
  }
}

void unflatten(const at::Tensor& flat, const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  const auto parts = torch::utils::unflatten_dense_tensors(flat, tensors);
  for (std::size_t i = 0; i < parts.size(); ++i) tensors[i].copy_(parts[i]);
}

ReduceOp reduce_op(const c10d::ReduceOp& op) {
  if (op.op_ <= c10d::ReduceOp::BXOR) return static_cast<ReduceOp>(op.op_);
  throw ArgumentError("PREMUL_SUM and custom reductions are not supported");
}

std::chrono::milliseconds limit(std::chrono::milliseconds asked) {
  return asked == c10d::kUnsetTimeout ? kNoTimeout : asked;
}

// What c10d's options say of a call.
template <class Options>
Call call_of(CallKind kind, at::TensorList inputs, at::TensorList outputs, const Options& options) {
  Call call{.kind = kind, .inputs = inputs, .outputs = outputs, .timeout = limit(options.timeout)};
  if constexpr (requires { options.reduceOp; }) call.op = reduce_op(options.reduceOp);
  if constexpr (requires { options.rootRank; }) call.root = static_cast<int>(options.rootRank);
  return call;
}

// The words of PyTorch's own errors, which programs look for.
std::string missing_text(const TimeoutError& error, bool all) {
  const auto& ranks = error.ranks();
  const auto named = all && ranks.size() > 1 ? fmt::format("Ranks {}", fmt::join(ranks, ", "))
                                             : fmt::format("Rank {}", ranks.front());
  return fmt::format("{} failed to pass monitoredBarrier: {}", named, error.what());
}

std::string reached_text(int rank, const TimeoutError& error) {
  return fmt::format(
      "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
      "rank 0: {}",
      rank, error.what());
}

// c10d passes lists where a rank has one tensor.
at::TensorList only(const Tensors& tensors, const char* what) {
  if (tensors.size() == 1) return tensors;
  throw_error<ArgumentError>("one tensor is needed as {}, not {}", what, tensors.size());
}

// The list of the only device; empty where this rank passes none.
at::TensorList only(const std::vector<Tensors>& lists, const char* what) {
  if (lists.empty()) return {};
  if (lists.size() == 1) return lists.front();
  throw_error<ArgumentError>("one list is needed as {}, not {}", what, lists.size());
}

}  // namespace

FromC10d::FromC10d(int rank, int size, const std::string& name, BackendTraits traits,
                   std::chrono::milliseconds timeout)
    : Backend(rank, size),
      rules_(rank, size, fmt::format("{} ({})", numbered_rank(rank, size), name), name, std::move(traits)),
      timeout_(timeout),
      futures_(std::make_shared<OperationFutures>()) {}

void FromC10d::record_calls(const std::shared_ptr<node::NodeGroup>& group) {
  records_ = true;
  recorder_ = group ? std::make_shared<CallRecorder>(group) : nullptr;
  if (group) group->set_backend(getBackendName());
}

OperationPtr FromC10d::recorded(const Call& call, c10::function_ref<OperationPtr()> start) {
  return recorder_ ? recorder_->record(call, start) : start();
}

void FromC10d::change_members(int rank, int size, const BackendHandle& group) {
  set_members(rank, size);
  const auto name = getBackendName();
  rules_ = CallRules(rank, size, fmt::format("{} ({})", numbered_rank(rank, size), name), name, group.traits);
  sequence_number_ = 0;
  if (records_) record_calls(group.node_group);
}

WorkPtr FromC10d::finished_work() { return work_of(c10d::OpType::UNKNOWN, nullptr, {}, {}); }

std::string FromC10d::get_reconfigure_handle() const {
  throw_error<ArgumentError>(
      "the group of backend {} cannot be formed again: reconfigure is for shm, and for "
      "hierarchical over gloo, as the group's only backend",
      getBackendName());
}

WorkPtr FromC10d::reconfigure(const libtorch::ReconfigureOptions& /*options*/) {
  (void)get_reconfigure_handle();  // throws
  return {};
}

c10::intrusive_ptr<c10d::Backend::Options> FromC10d::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), timeout_.load());
}

c10::intrusive_ptr<c10d::Backend> FromC10d::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::vector<int>& ranks,
                                                  const c10::intrusive_ptr<Options>& options) {
  if (!split_) throw ArgumentError("this group cannot be split; make the part with new_group()");
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) return {};
  return split_({.store = store,
                 .ranks = ranks,
                 .rank = static_cast<int>(own - ranks.begin()),
                 .name = options->group_name,
                 .timeout = options->timeout});
}

OperationPtr FromC10d::begin(const Call& call) {
  rules_.check(call);
  if (!is_message(call.kind)) ++sequence_number_;
  auto taken = call;
  const MessageOrder order(taken);
  const InferenceTensors ordinary(taken);
  return recorded(call, [&] { return order.finish(start(taken, [](CallStage) {})); });
}

WorkPtr FromC10d::work_of(c10d::OpType op, OperationPtr operation, Tensors outputs, const Call& call) {
  return c10::make_intrusive<OperationWork>(getRank(), op, std::move(operation), std::move(outputs),
                                            sequence_number_.load(), limit_of(call), futures_);
}

WorkPtr FromC10d::run(c10d::OpType op, const Call& call) {
  auto operation = begin(call);
  return work_of(op, std::move(operation), call.outputs.vec(), call);
}

WorkPtr FromC10d::run(c10d::OpType op, const Call& call, Tensors outputs, std::function<void()> finish) {
  auto operation = begin(call);
  if (operation) {
    operation = std::make_shared<FinishedOperation>(std::move(operation), std::move(finish));
  } else {
    finish();
  }
  return work_of(op, std::move(operation), std::move(outputs), call);
}

WorkPtr FromC10d::run_each(c10d::OpType op, Call call, const Tensors& outputs, const Tensors& inputs) {
  if (outputs.size() != inputs.size()) {
    throw_error<ArgumentError>("a coalesced call needs as many outputs as inputs, not {} and {}",
                               outputs.size(), inputs.size());
  }
  const auto for_each = [&](auto action) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      call.inputs = inputs[i];
      call.outputs = outputs[i];
      action(call);
    }
  };
  // The other ranks wait for all parts, so none starts before all are right.
  for_each([&](const Call& part) { rules_.check(part); });
  rules_.check_coalesced(call.kind, outputs, inputs, std::equal_to<>());
  std::vector<OperationPtr> operations;
  for_each([&](const Call& part) {
    if (auto operation = begin(part)) operations.push_back(std::move(operation));
  });
  return work_of(op, std::make_shared<JointOperation>(std::move(operations)), outputs, call);
}

WorkPtr FromC10d::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().is_sparse()) {
    return allreduce_of_sparse(tensors.front(), options);
  }
  return run(c10d::OpType::ALLREDUCE, call_of(CallKind::all_reduce, {}, only(tensors, "input"), options));
}

WorkPtr FromC10d::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  rules_.check_coalesced(CallKind::all_reduce, tensors, {}, std::equal_to<>());
  const auto flat = flatten(tensors);
  return run(c10d::OpType::ALLREDUCE_COALESCED,
             {.kind = CallKind::all_reduce,
              .parts = tensors,
              .outputs = flat,
              .op = reduce_op(options.reduceOp),
              .timeout = limit(options.timeout)},
             tensors, [flat, tensors] { unflatten(flat, tensors); });
}

WorkPtr FromC10d::allreduce_of_sparse(at::Tensor tensor, const c10d::AllreduceOptions& options) {
  const ProfilerEvent event([this] { return getBackendName() + ":sparse_all_reduce"; });
  const auto gather = [&](const at::Tensor& input, const Tensors& outputs) {
    const Call call{
        .kind = CallKind::all_gather, .inputs = input, .outputs = outputs, .timeout = limit(options.timeout)};
    if (const auto operation = begin(call)) operation->wait(call.timeout);
  };
  sum_sparse(tensor, reduce_op(options.reduceOp), getRank(), getSize(), gather);
  return work_of(c10d::OpType::_ALLREDUCE_SPARSE, nullptr, {tensor}, {.timeout = limit(options.timeout)});
}

WorkPtr FromC10d::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run(c10d::OpType::BROADCAST, call_of(CallKind::broadcast, {}, only(tensors, "input"), options));
}

WorkPtr FromC10d::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return run(c10d::OpType::REDUCE, call_of(CallKind::reduce, {}, only(tensors, "input"), options));
}

WorkPtr FromC10d::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions& options) {
  return run(c10d::OpType::ALLGATHER,
             call_of(CallKind::all_gather, only(inputs, "input"), only(outputs, "output"), options));
}

WorkPtr FromC10d::_allgather_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::AllgatherOptions& options) {
  return run(c10d::OpType::_ALLGATHER_BASE,
             call_of(CallKind::all_gather_into_tensor, input, output, options));
}

WorkPtr FromC10d::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  Tensors all_outputs;
  for (const auto& list : outputs) all_outputs.insert(all_outputs.end(), list.begin(), list.end());
  rules_.check_coalesced(CallKind::all_gather, all_outputs, inputs,
                         [&](std::size_t output, std::size_t input) {
                           return output == static_cast<std::size_t>(getRank()) * inputs.size() + input;
                         });
  check_same_parts(outputs, inputs);
  const auto flat = flatten(inputs);
  Tensors flat_outputs;
  for (const auto& list : outputs) flat_outputs.push_back(flatten(list));
  return run(c10d::OpType::ALLGATHER_COALESCED,
             {.kind = CallKind::all_gather,
              .inputs = flat,
              .parts = inputs,
              .outputs = flat_outputs,
              .timeout = limit(options.timeout)},
             flat_outputs, [flat_outputs, outputs] {
               for (std::size_t i = 0; i < outputs.size(); ++i) unflatten(flat_outputs[i], outputs[i]);
             });
}

WorkPtr FromC10d::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return run_each(c10d::OpType::_ALLGATHER_BASE, call_of(CallKind::all_gather_into_tensor, {}, {}, options),
                  outputs, inputs);
}

WorkPtr FromC10d::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return run(c10d::OpType::GATHER,
             call_of(CallKind::gather, only(inputs, "input"), only(outputs, "output"), options));
}

WorkPtr FromC10d::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                          const c10d::ScatterOptions& options) {
  return run(c10d::OpType::SCATTER,
             call_of(CallKind::scatter, only(inputs, "input"), only(outputs, "output"), options));
}

WorkPtr FromC10d::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ReduceScatterOptions& options) {
  return run(c10d::OpType::REDUCE_SCATTER,
             call_of(CallKind::reduce_scatter, only(inputs, "input"), only(outputs, "output"), options));
}

WorkPtr FromC10d::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) {
  return run(c10d::OpType::_REDUCE_SCATTER_BASE,
             call_of(CallKind::reduce_scatter_tensor, input, output, options));
}

WorkPtr FromC10d::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  return run_each(c10d::OpType::_REDUCE_SCATTER_BASE,
                  call_of(CallKind::reduce_scatter_tensor, {}, {}, options), outputs, inputs);
}

WorkPtr FromC10d::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return run(c10d::OpType::ALLTOALL, call_of(CallKind::all_to_all, inputs, outputs, options));
}

WorkPtr FromC10d::alltoall_base(at::Tensor& output, at::Tensor& input,
                                std::vector<std::int64_t>& output_sizes,
                                std::vector<std::int64_t>& input_sizes,
                                const c10d::AllToAllOptions& options) {
  return run(c10d::OpType::ALLTOALL_BASE, {.kind = CallKind::all_to_all_single,
                                           .inputs = input,
                                           .outputs = output,
                                           .output_splits = output_sizes,
                                           .input_splits = input_sizes,
                                           .timeout = limit(options.timeout)});
}

WorkPtr FromC10d::send(Tensors& tensors, int dst, int tag) {
  return run(c10d::OpType::SEND,
             {.kind = CallKind::send, .inputs = only(tensors, "input"), .peer = dst, .tag = tag});
}

WorkPtr FromC10d::recv(Tensors& tensors, int src, int tag) {
  return run(c10d::OpType::RECV,
             {.kind = CallKind::recv, .outputs = only(tensors, "output"), .peer = src, .tag = tag});
}

WorkPtr FromC10d::recvAnysource(Tensors& tensors, int tag) {
  return run(c10d::OpType::RECVANYSOURCE,
             {.kind = CallKind::recv, .outputs = only(tensors, "output"), .peer = kAnyRank, .tag = tag});
}

WorkPtr FromC10d::barrier(const c10d::BarrierOptions& options) {
  return run(c10d::OpType::BARRIER, call_of(CallKind::barrier, {}, {}, options));
}

void FromC10d::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Call call{.kind = CallKind::barrier,
                  .monitored = true,
                  .wait_all_ranks = wait_all_ranks,
                  .timeout = limit(options.timeout)};
  const auto rank = getRank();
  rules_.check(call);
  // Zero means no limit in our calls.
  if (options.timeout == std::chrono::milliseconds(0)) {
    throw_error<TimeoutError>("Rank {} timed out in monitoredBarrier after 0 ms", rank);
  }
  try {
    const auto operation = recorded(call, [&] { return start(call, [](CallStage) {}); });
    if (operation) operation->wait(call.timeout);
  } catch (const TimeoutError& error) {
    const bool has_waited = rank == 0 && !error.ranks().empty();
    throw TimeoutError(has_waited ? missing_text(error, wait_all_ranks) : reached_text(rank, error),
                       error.details());
  }
}

}  // namespace lockstep::comm
