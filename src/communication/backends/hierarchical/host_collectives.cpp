// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/host_collectives.h"

#include <numeric>
#include <stdexcept>
#include <system_error>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "backends/hierarchical/hierarchical_call.h"
#include "base/text.h"
#include "comm/emulated_reductions.h"

namespace lockstep::backends {
namespace {

using at::Tensor;
using comm::Call;

// The elements of a dense tensor in the order of its memory.
Tensor row_of(const Tensor& tensor) {
  const auto plain = tensor.detach();
  return plain.as_strided({plain.numel()}, {1}, plain.storage_offset());
}

std::int64_t bytes_of(const Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

std::vector<Tensor> rows_of(at::TensorList tensors) {
  std::vector<Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(row_of(tensor));
  return rows;
}

// The inputs of a reduce_scatter, one a rank.
std::vector<Tensor> parts_of(const Call& call, std::int64_t size) {
  if (call.kind == CallKind::reduce_scatter) return rows_of(call.inputs);
  std::vector<Tensor> parts;
  const auto whole = row_of(call.inputs[0]);
  const auto count = whole.numel() / size;
  for (std::int64_t rank = 0; rank < size; ++rank)
    parts.push_back(whole.slice(0, rank * count, (rank + 1) * count));
  return parts;
}

// [rank]: its rows of a tensor, as one row; without splits equal parts.
std::vector<Tensor> cut(const Tensor& tensor, c10::IntArrayRef splits, std::int64_t ranks) {
  const auto whole = row_of(tensor);
  const auto rows = tensor.size(0);
  const auto width = rows == 0 ? 0 : whole.numel() / rows;
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto end = begin + width * (splits.empty() ? rows / ranks : splits[static_cast<std::size_t>(rank)]);
    parts.push_back(whole.slice(0, begin, end));
    begin = end;
  }
  return parts;
}

constexpr std::uint64_t kLeavingScope = 1;  // the scope of the reason for which a rank has left its host

ReduceOp without_division(ReduceOp op) { return op == ReduceOp::AVG ? ReduceOp::SUM : op; }

// Throws the error that is being handled, with more text.
[[noreturn]] void rethrow_with(const std::string& text) {
  if (text.empty()) throw;
  try {
    throw;
  } catch (const TimeoutError& error) {
    throw TimeoutError(error.what() + text, error.details());
  } catch (const PeerLost& error) {
    throw PeerLost(error.what() + text, error.details());
  }
}

}  // namespace

bool HostCollectives::can_run(const Call& call) {
  switch (call.kind) {
    case CallKind::all_reduce:
    case CallKind::broadcast:
    case CallKind::reduce:
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor:
    case CallKind::all_to_all:
    case CallKind::all_to_all_single:
      return true;
    case CallKind::barrier:
      return !call.monitored;
    default:
      return false;
  }
}

void HostCollectives::run(const Call& call) {
  if (has_failed_) throw PeerLost("an earlier call of this group failed, and this rank has left it");
  try {
    dispatch(call);
  } catch (const std::exception& error) {
    const auto others = reasons_of_host();
    leave(others.empty() ? first_line_of(error.what()) : "");
    rethrow_with(others);
  }
}

// What ranks of this host have written that have left. One line each.
std::string HostCollectives::reasons_of_host() const {
  std::string text;
  const auto node = group_.host->node_group();
  for (int rank = 0; rank < group_.layout.local_size(); ++rank) {
    if (node->refuses(rank, kLeavingScope))
      text += fmt::format("\n  {} has left because of: {}", node->name_of(rank), node->reason_of(rank));
  }
  return text;
}

void HostCollectives::leave(const std::string& reason) noexcept {
  has_failed_ = true;
  if (!reason.empty()) group_.host->node_group()->refuse(kLeavingScope, reason, true);
  group_.host->close();
  auto legs = group_.lanes;
  if (auto all = all_to_all_leg()) legs.push_back(std::move(all));
  // Waits a moment for calls that are under way, but the error should not.
  const auto break_off = [legs = std::move(legs)] {
    for (const auto& leg : legs) leg->break_off();
  };
  try {
    closing_ = std::jthread(break_off);
  } catch (const std::system_error&) {  // no thread can be started
    break_off();
  }
}

void HostCollectives::dispatch(const Call& call) {
  const at::NoGradGuard no_grad;
  const HierarchicalCall parent(call, peers_);
  const auto& out = call.outputs;
  switch (call.kind) {
    case CallKind::all_reduce:
      return all_reduce(row_of(out[0]), call.op, parent);
    case CallKind::broadcast:
      return broadcast(row_of(out[0]), call.root, parent);
    case CallKind::reduce:
      return reduce(row_of(out[0]), call.root, call.op, parent);
    case CallKind::all_gather: {
      const auto parts = all_gather(row_of(call.inputs[0]), parent);
      for (std::size_t rank = 0; rank < parts.size(); ++rank) row_of(out[rank]).copy_(parts[rank]);
      return;
    }
    case CallKind::all_gather_into_tensor: {
      Tensor whole = row_of(out[0]);
      at::cat_out(whole, all_gather(row_of(call.inputs[0]), parent));
      return;
    }
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor: {
      const auto output = row_of(out[0]);
      reduce_scatter(group_, output, parts_of(call, group_.layout.size()), without_division(call.op), parent);
      if (call.op == ReduceOp::AVG) comm::divide(output, group_.layout.size());
      return;
    }
    case CallKind::barrier:
      return barrier(parent);
    case CallKind::all_to_all:
      return all_to_all(rows_of(out), rows_of(call.inputs), parent);
    case CallKind::all_to_all_single:
      return all_to_all(cut(out[0], call.output_splits, group_.layout.size()),
                        cut(call.inputs[0], call.input_splits, group_.layout.size()), parent);
    default:
      throw std::logic_error("this call does not use shared memory");
  }
}

void HostCollectives::all_reduce(const Tensor& row, ReduceOp op, const HierarchicalCall& call) const {
  if (bytes_of(row) <= kSmallBytes) {
    reduce_through_leader(row, without_division(op), call);
  } else {
    reduce_in_lanes(group_, row, without_division(op), call);
  }
  if (op == ReduceOp::AVG) comm::divide(row, group_.layout.size());
}

void HostCollectives::reduce_through_leader(const Tensor& row, ReduceOp op,
                                            const HierarchicalCall& call) const {
  call.run(group_.host, {.kind = CallKind::reduce, .outputs = row, .op = op, .root = 0});
  if (is_leader()) call.run_in_lane(first_lane(), {.kind = CallKind::all_reduce, .outputs = row, .op = op});
  call.run(group_.host, {.kind = CallKind::broadcast, .outputs = row, .root = 0});
}

void HostCollectives::broadcast(const Tensor& row, int src, const HierarchicalCall& call) const {
  const int source = group_.layout.host_of(src);
  const bool is_here = source == group_.layout.host();
  const auto on_host = [&](int root) {
    call.run(group_.host, {.kind = CallKind::broadcast, .outputs = row, .root = root});
  };
  if (is_here) on_host(group_.layout.local_rank_of(src));
  if (is_leader())
    call.run_in_lane(first_lane(), {.kind = CallKind::broadcast, .outputs = row, .root = source});
  if (!is_here) on_host(0);
}

void HostCollectives::reduce(const Tensor& row, int dst, ReduceOp op, const HierarchicalCall& call) const {
  const auto sum = without_division(op);
  const int target = group_.layout.host_of(dst);
  call.run(group_.host, {.kind = CallKind::reduce, .outputs = row, .op = sum, .root = 0});
  if (is_leader())
    call.run_in_lane(first_lane(), {.kind = CallKind::reduce, .outputs = row, .op = sum, .root = target});
  if (target == group_.layout.host() && group_.layout.local_rank_of(dst) != 0)
    call.run(group_.host, {.kind = CallKind::broadcast, .outputs = row, .root = 0});
  if (op == ReduceOp::AVG && dst == group_.layout.rank()) comm::divide(row, group_.layout.size());
}

// Hosts with fewer ranks send as many bytes as the largest one.
std::vector<Tensor> HostCollectives::all_gather(const Tensor& input, const HierarchicalCall& call) const {
  const auto whole =
      at::empty({group_.layout.hosts(), group_.layout.lanes(), input.numel()}, input.options());
  const auto own = whole[group_.layout.host()];
  Tensors parts;
  for (int local = 0; is_leader() && local < group_.layout.local_size(); ++local) parts.push_back(own[local]);
  call.run(group_.host, {.kind = CallKind::gather, .inputs = input, .outputs = parts, .root = 0});
  if (is_leader()) {
    const auto copy = own.clone();
    call.run_in_lane(first_lane(),
                     {.kind = CallKind::all_gather_into_tensor, .inputs = copy, .outputs = whole});
  }
  call.run(group_.host, {.kind = CallKind::broadcast, .outputs = whole, .root = 0});
  Tensors inputs;
  for (int rank = 0; rank < group_.layout.size(); ++rank)
    inputs.push_back(whole[group_.layout.host_of(rank)][group_.layout.local_rank_of(rank)]);
  return inputs;
}

void HostCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                 const HierarchicalCall& call) {
  auto all = all_to_all_leg();
  if (!all) {
    all = connect_all_();
    const MutexLock lock(all_mutex_);
    all_ = all;
  }
  Tensors sent, to_host, from_host;
  std::vector<std::int64_t> to(inputs.size()), from(outputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    if (group_.layout.host_of(static_cast<int>(rank)) == group_.layout.host()) {
      to_host.push_back(inputs[rank]);
      from_host.push_back(outputs[rank]);
    } else {
      sent.push_back(inputs[rank]);
      to[rank] = inputs[rank].numel();
      from[rank] = outputs[rank].numel();
    }
  }
  const auto sent_row = at::cat(sent);
  const auto received =
      at::empty({std::accumulate(from.begin(), from.end(), std::int64_t{0})}, sent_row.options());
  auto work = call.start(all, {.kind = CallKind::all_to_all_single,
                               .inputs = sent_row,
                               .outputs = received,
                               .output_splits = from,
                               .input_splits = to});
  call.run(group_.host, {.kind = CallKind::all_to_all, .inputs = to_host, .outputs = from_host});
  call.wait(work);
  const auto parts = received.split_with_sizes(from);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (from[i] > 0) outputs[i].copy_(parts[i]);
}

void HostCollectives::barrier(const HierarchicalCall& call) const {
  call.run(group_.host, {});
  if (is_leader()) call.run_in_lane(first_lane(), {});
  call.run(group_.host, {});
}

}  // namespace lockstep::backends
