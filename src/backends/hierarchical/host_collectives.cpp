// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/host_collectives.h"

#include <algorithm>
#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace lockstep::backends {
namespace {

using at::Tensor;

// Up to this size the latency of a call counts, not its bytes.
constexpr std::int64_t kSmallBytes = std::int64_t{32} * 1024;
// The network reduces one chunk while the host reduces the next one.
constexpr std::int64_t kChunkBytes = std::int64_t{4} * 1024 * 1024;

// The elements of a dense tensor in the order of its memory.
Tensor row_of(const Tensor& tensor) {
  const auto plain = tensor.detach();
  return plain.as_strided({plain.numel()}, {1}, plain.storage_offset());
}

std::int64_t bytes_of(const Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

Tensor joined(at::TensorList inputs) {
  std::vector<Tensor> rows;
  for (const auto& input : inputs) rows.push_back(row_of(input));
  return at::cat(rows);
}

}  // namespace

bool HostCollectives::can_run(const comm::Call& call) {
  switch (call.kind) {
    case CallKind::all_reduce:
    case CallKind::broadcast:
    case CallKind::reduce:
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor:
      return true;
    case CallKind::barrier:
      return !call.monitored;
    default:
      return false;
  }
}

void HostCollectives::run(const comm::Call& call) const {
  const at::NoGradGuard no_grad;
  const auto& out = call.outputs;
  const auto own = static_cast<std::size_t>(layout_.rank());
  switch (call.kind) {
    case CallKind::all_reduce:
      return all_reduce(row_of(out[0]), call.op, call.where);
    case CallKind::broadcast:
      return broadcast(row_of(out[0]), call.root, call.where);
    case CallKind::reduce:
      return reduce(row_of(out[0]), call.root, call.op, call.where);
    case CallKind::all_gather: {
      const auto parts = all_gather(row_of(call.inputs[0]), call.where);
      for (std::size_t rank = 0; rank < parts.size(); ++rank) row_of(out[rank]).copy_(parts[rank]);
      return;
    }
    case CallKind::all_gather_into_tensor: {
      at::Tensor whole = row_of(out[0]);
      at::cat_out(whole, all_gather(row_of(call.inputs[0]), call.where));
      return;
    }
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor: {
      const auto whole = joined(call.inputs);
      all_reduce(whole, call.op, call.where);
      row_of(out[0]).copy_(whole.chunk(layout_.size())[own]);
      return;
    }
    case CallKind::barrier:
      return barrier(call.where);
    default:
      throw std::logic_error("this call does not use shared memory");
  }
}

void HostCollectives::all_reduce(const Tensor& row, ReduceOp op, Where where) const {
  const auto sum = op == ReduceOp::AVG ? ReduceOp::SUM : op;
  if (layout_.lanes() == 1 || bytes_of(row) <= kSmallBytes) {
    reduce_through_leader(row, sum, where);
  } else {
    reduce_in_lanes(row, sum, where);
  }
  if (op == ReduceOp::AVG) row.div_(layout_.size());
}

void HostCollectives::reduce_through_leader(const Tensor& row, ReduceOp op, Where where) const {
  host_.reduce(row, 0, op, where);
  if (is_leader()) lane_->all_reduce(row, op, where);
  host_.broadcast(row, 0, where);
}

// [local rank]: its part of the row; empty for ranks without a lane.
std::vector<Tensor> HostCollectives::shares_of(const Tensor& row) const {
  const std::int64_t lanes = layout_.lanes();
  const auto begin = [&](std::int64_t lane) { return std::min(lane, lanes) * row.numel() / lanes; };
  std::vector<Tensor> shares;
  for (int lane = 0; lane < layout_.local_size(); ++lane)
    shares.push_back(row.slice(0, begin(lane), begin(lane + 1)));
  return shares;
}

void HostCollectives::reduce_in_lanes(const Tensor& row, ReduceOp op, Where where) const {
  const auto step = std::max<std::int64_t>(1, kChunkBytes / static_cast<std::int64_t>(row.element_size()));
  const auto own = static_cast<std::size_t>(layout_.local_rank());
  std::vector<Tensor> before;  // the shares that the network reduces
  Work work;
  const auto finish = [&] {
    if (before.empty()) return;
    work.wait();
    host_.all_gather(before, before[own], where);
  };
  for (std::int64_t begin = 0; begin < row.numel(); begin += step) {
    const auto chunk = row.slice(0, begin, std::min(begin + step, row.numel()));
    host_.all_reduce(chunk, op, where);
    auto shares = shares_of(chunk);
    auto next = lane_ ? lane_->all_reduce_async(shares[own], op, where) : Work();
    finish();
    before = std::move(shares);
    work = std::move(next);
  }
  finish();
}

void HostCollectives::broadcast(const Tensor& row, int src, Where where) const {
  const int source = layout_.host_of(src);
  const bool is_here = source == layout_.host();
  if (is_here) host_.broadcast(row, layout_.local_rank_of(src), where);
  if (is_leader()) lane_->broadcast(row, source, where);
  if (!is_here) host_.broadcast(row, 0, where);
}

void HostCollectives::reduce(const Tensor& row, int dst, ReduceOp op, Where where) const {
  const auto sum = op == ReduceOp::AVG ? ReduceOp::SUM : op;
  const int target = layout_.host_of(dst);
  host_.reduce(row, 0, sum, where);
  if (is_leader()) lane_->reduce(row, target, sum, where);
  if (target == layout_.host() && layout_.local_rank_of(dst) != 0) host_.broadcast(row, 0, where);
  if (op == ReduceOp::AVG && dst == layout_.rank()) row.div_(layout_.size());
}

// Hosts with fewer ranks send as many bytes as the largest one.
std::vector<Tensor> HostCollectives::all_gather(const Tensor& input, Where where) const {
  const auto places = layout_.largest_host();
  const auto whole = at::empty({layout_.hosts(), places, input.numel()}, input.options());
  const auto own = whole[layout_.host()];
  std::vector<Tensor> parts;
  for (int local = 0; is_leader() && local < layout_.local_size(); ++local) parts.push_back(own[local]);
  host_.gather(input, parts, 0, where);
  if (is_leader()) lane_->all_gather_into_tensor(whole, own.clone(), where);
  host_.broadcast(whole, 0, where);
  std::vector<Tensor> inputs;
  for (int rank = 0; rank < layout_.size(); ++rank)
    inputs.push_back(whole[layout_.host_of(rank)][layout_.local_rank_of(rank)]);
  return inputs;
}

void HostCollectives::barrier(Where where) const {
  host_.barrier(where);
  if (is_leader()) lane_->barrier(where);
  host_.barrier(where);
}

}  // namespace lockstep::backends
