// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/host_collectives.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/work.h>

#include "backends/hierarchical/hierarchical_call.h"
#include "backends/shm/call_request.h"
#include "backends/shm/kernels.h"
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

// `row` becomes the reduction of the rows of `rows`, in their order.
void reduce_rows(const Tensor& row, const Tensor& rows, ReduceOp op) {
  const auto element = shm::element_of(row.scalar_type());
  const auto reduce = shm::reduce_kernel(element, static_cast<shm::Reduction>(op));
  std::vector<const void*> inputs;
  for (std::int64_t i = 0; i < rows.size(0); ++i) inputs.push_back(rows[i].const_data_ptr());
  void* const output = row.data_ptr();
  reduce(&output, 1, inputs.data(), static_cast<int>(inputs.size()), row.nbytes() / size_of(element));
}

// Throws the error that is being handled, with more text.
[[noreturn]] void rethrow_with(const std::string& text) {
  if (text.empty()) throw;
  try {
    throw;
  } catch (const TimeoutError& error) {
    throw TimeoutError(error.what() + text);
  } catch (const PeerLost& error) {
    throw PeerLost(error.what() + text);
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
    const std::string own = error.what();
    leave(others.empty() ? own.substr(0, own.find('\n')) : "");
    rethrow_with(others);
  }
}

// What ranks of this host have written that have left. One line each.
std::string HostCollectives::reasons_of_host() const {
  std::string text;
  const auto node = host_->node_group();
  for (int rank = 0; rank < layout_.local_size(); ++rank) {
    if (node->refuses(rank, kLeavingScope))
      text += fmt::format("\n  {} has left because of: {}", node->name_of(rank), node->reason_of(rank));
  }
  return text;
}

void HostCollectives::leave(const std::string& reason) noexcept {
  has_failed_ = true;
  if (!reason.empty()) host_->node_group()->refuse(kLeavingScope, reason, true);
  host_->close();
  auto legs = lanes_;
  if (auto all = all_to_all_leg()) legs.push_back(std::move(all));
  // Waits a moment for calls that are under way, but the error should not.
  closing_ = std::jthread([legs = std::move(legs)] {
    for (const auto& leg : legs) leg->break_off();
  });
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
    case CallKind::reduce_scatter_tensor:
      return reduce_scatter(row_of(out[0]), parts_of(call, layout_.size()), call.op, parent);
    case CallKind::barrier:
      return barrier(parent);
    case CallKind::all_to_all:
      return all_to_all(rows_of(out), rows_of(call.inputs), parent);
    case CallKind::all_to_all_single:
      return all_to_all(cut(out[0], call.output_splits, layout_.size()),
                        cut(call.inputs[0], call.input_splits, layout_.size()), parent);
    default:
      throw std::logic_error("this call does not use shared memory");
  }
}

void HostCollectives::all_reduce(const Tensor& row, ReduceOp op, const HierarchicalCall& call) const {
  if (bytes_of(row) <= kSmallBytes) {
    reduce_through_leader(row, without_division(op), call);
  } else {
    reduce_in_lanes(row, without_division(op), call);
  }
  if (op == ReduceOp::AVG) comm::divide(row, layout_.size());
}

void HostCollectives::reduce_through_leader(const Tensor& row, ReduceOp op,
                                            const HierarchicalCall& call) const {
  call.run(host_, {.kind = CallKind::reduce, .outputs = row, .op = op, .root = 0});
  if (is_leader()) call.run_in_lane(first_lane(), {.kind = CallKind::all_reduce, .outputs = row, .op = op});
  call.run(host_, {.kind = CallKind::broadcast, .outputs = row, .root = 0});
}

// [lane]: its part of the row. Then empty parts, so that every local rank has as many.
std::vector<Tensor> HostCollectives::shares_of(const Tensor& row) const {
  const std::int64_t lanes = layout_.lanes();
  const auto begin = [&](std::int64_t lane) { return std::min(lane, lanes) * row.numel() / lanes; };
  Tensors shares;
  for (int lane = 0; lane < layout_.lanes_of_each() * layout_.local_size(); ++lane)
    shares.push_back(row.slice(0, begin(lane), begin(lane + 1)));
  return shares;
}

void HostCollectives::gather_shares(const Tensors& shares, const HierarchicalCall& call) const {
  const auto ranks = static_cast<std::size_t>(layout_.local_size());
  const auto own = static_cast<std::size_t>(layout_.local_rank());
  for (std::size_t first = 0; first < shares.size(); first += ranks) {
    call.run(host_, {.kind = CallKind::all_gather,
                     .inputs = shares[first + own],
                     .outputs = at::TensorList(shares).slice(first, ranks)});
  }
}

// Each share becomes its sum on the rank that has its lane. With shares of one size, no rank reads the sums
// of the others.
void HostCollectives::reduce_on_host(const Tensor& chunk, const Tensors& shares, ReduceOp op,
                                     const HierarchicalCall& call) const {
  const auto is_as_large = [&](const Tensor& share) { return share.numel() == shares[0].numel(); };
  if (!std::ranges::all_of(shares, is_as_large))
    return call.run(host_, {.kind = CallKind::all_reduce, .outputs = chunk, .op = op});
  const auto ranks = static_cast<std::size_t>(layout_.local_size());
  const auto own = static_cast<std::size_t>(layout_.local_rank());
  for (std::size_t first = 0; first < shares.size(); first += ranks) {
    call.run(host_, {.kind = CallKind::reduce_scatter,
                     .inputs = at::TensorList(shares).slice(first, ranks),
                     .outputs = shares[first + own],
                     .op = op});
  }
}

// Note [Chunks]
//
// A large all_reduce over two hosts with two ranks each. One chunk has a share for each lane:
//
//                     host 0                      host 1
//                     rank 0      rank 1          rank 2      rank 3
//     reduce_on_host  a0          b0              a1          b1          sums of the host, in rank order
//     lanes               a0 + a1 between ranks 0 and 2, b0 + b1 between ranks 1 and 3
//     gather_shares   a b         a b             a b         a b
//
// The lanes of one chunk run while the hosts reduce the next one and gather the one before:
//
//     host       reduce 0 | reduce 1 | gather 0 | reduce 2 | gather 1 | gather 2
//     network             [ lanes 0 ......... ] [ lanes 2 .........  ]
//                                    [ lanes 1 .........  ]
//
// So at most two chunks are on the network, and a chunk's shares are gathered only after its lanes have
// ended. Each chunk costs one message per step of the network's ring, hence the lower limit of 8 MiB, which
// grows with the hosts (chunk_bytes()). reduce_scatter() has the same order: sums_of_host() and exchange() of
// one chunk, then the sums that have arrived for the chunk before.
void HostCollectives::reduce_in_lanes(const Tensor& row, ReduceOp op, const HierarchicalCall& call) const {
  const auto step =
      std::max<std::int64_t>(1, chunk_bytes(layout_.hosts()) / static_cast<std::int64_t>(row.element_size()));
  Tensors before;  // the shares that the network reduces
  std::vector<Work> works;
  const auto finish = [&] {
    if (before.empty()) return;
    for (auto& work : works) call.wait(work);
    gather_shares(before, call);
  };
  for (std::int64_t begin = 0; begin < row.numel(); begin += step) {
    const auto chunk = row.slice(0, begin, std::min(begin + step, row.numel()));
    auto shares = shares_of(chunk);
    reduce_on_host(chunk, shares, op, call);
    std::vector<Work> next;
    auto own = static_cast<std::size_t>(layout_.local_rank());
    for (const auto& lane : lanes_) {
      next.push_back(call.start(lane, {.kind = CallKind::all_reduce, .outputs = shares[own], .op = op}));
      own += static_cast<std::size_t>(layout_.local_size());
    }
    finish();
    before = std::move(shares);
    works = std::move(next);
  }
  finish();
}

// The sums that the hosts have for a part of this rank's output, and the calls that exchange them.
struct HostCollectives::Exchange {
  Tensor output;
  Tensor received;  // [host]
  Tensors sums;     // kept until they are sent
  std::vector<Work> works;
};

void HostCollectives::reduce_scatter(const Tensor& output, const Tensors& parts, ReduceOp op,
                                     const HierarchicalCall& call) const {
  const auto sum = without_division(op);
  const auto bytes_of_row = layout_.size() * static_cast<std::int64_t>(output.element_size());
  const auto step = std::max<std::int64_t>(1, chunk_bytes(layout_.hosts()) / bytes_of_row);
  std::optional<Exchange> before;  // that the network makes
  const auto finish = [&] {
    if (!before) return;
    for (auto& work : before->works) call.wait(work);
    reduce_rows(before->output, before->received, sum);
  };
  for (std::int64_t begin = 0; begin < output.numel(); begin += step) {
    const auto chunk_of = [&](const Tensor& row) {
      return row.slice(0, begin, std::min(begin + step, row.numel()));
    };
    Tensors chunks;
    for (const auto& part : parts) chunks.push_back(chunk_of(part));
    auto next = exchange(chunk_of(output), sums_of_host(chunks, sum, call), call);
    finish();
    before = std::move(next);
  }
  finish();
  if (op == ReduceOp::AVG) comm::divide(output, layout_.size());
}

// A rank is served by the lane of its own number, so it is the one that this lane has on its host.
HostCollectives::Exchange HostCollectives::exchange(const Tensor& output, Tensors sums,
                                                    const HierarchicalCall& call) const {
  Exchange result{.output = output,
                  .received = at::empty({layout_.hosts(), output.numel()}, output.options()),
                  .sums = std::move(sums),
                  .works = {}};
  int number = layout_.local_rank();
  for (std::size_t i = 0; i < lanes_.size(); ++i, number += layout_.local_size()) {
    std::vector<std::int64_t> sent;
    for (int host = 0; host < layout_.hosts(); ++host)
      sent.push_back(layout_.member(host, number) < 0 ? 0 : 1);
    const bool is_own = number == layout_.local_rank();
    const std::vector<std::int64_t> taken(sent.size(), is_own ? 1 : 0);
    result.works.push_back(
        call.start(lanes_[i], {.kind = CallKind::all_to_all_single,
                               .inputs = result.sums[i],
                               .outputs = is_own ? result.received : result.received.slice(0, 0, 0),
                               .output_splits = taken,
                               .input_splits = sent}));
  }
  return result;
}

// [lane of this rank]: one row for each host that has a rank of the lane's number.
std::vector<Tensor> HostCollectives::sums_of_host(const Tensors& parts, ReduceOp op,
                                                  const HierarchicalCall& call) const {
  const auto count = parts[0].numel();
  // Where a lane has no rank on a host.
  const auto spare = at::empty({count}, parts[0].options());
  const auto unused = at::empty_like(spare);
  Tensors sums;
  for (int first = 0; first < layout_.lanes(); first += layout_.local_size()) {
    const int own = first + layout_.local_rank();
    const auto rows = at::empty({layout_.hosts_with(own), count}, spare.options());
    std::int64_t next = 0;
    for (int host = 0; host < layout_.hosts(); ++host) {
      if (layout_.size_of(host) <= first) continue;
      Tensors inputs;
      for (int number = first; number < first + layout_.local_size(); ++number) {
        const int rank = layout_.member(host, number);
        inputs.push_back(rank < 0 ? spare : parts[static_cast<std::size_t>(rank)]);
      }
      const auto sum = layout_.member(host, own) < 0 ? unused : rows[next++];
      call.run(host_, {.kind = CallKind::reduce_scatter, .inputs = inputs, .outputs = sum, .op = op});
    }
    sums.push_back(rows);
  }
  return sums;
}

void HostCollectives::broadcast(const Tensor& row, int src, const HierarchicalCall& call) const {
  const int source = layout_.host_of(src);
  const bool is_here = source == layout_.host();
  const auto on_host = [&](int root) {
    call.run(host_, {.kind = CallKind::broadcast, .outputs = row, .root = root});
  };
  if (is_here) on_host(layout_.local_rank_of(src));
  if (is_leader())
    call.run_in_lane(first_lane(), {.kind = CallKind::broadcast, .outputs = row, .root = source});
  if (!is_here) on_host(0);
}

void HostCollectives::reduce(const Tensor& row, int dst, ReduceOp op, const HierarchicalCall& call) const {
  const auto sum = without_division(op);
  const int target = layout_.host_of(dst);
  call.run(host_, {.kind = CallKind::reduce, .outputs = row, .op = sum, .root = 0});
  if (is_leader())
    call.run_in_lane(first_lane(), {.kind = CallKind::reduce, .outputs = row, .op = sum, .root = target});
  if (target == layout_.host() && layout_.local_rank_of(dst) != 0)
    call.run(host_, {.kind = CallKind::broadcast, .outputs = row, .root = 0});
  if (op == ReduceOp::AVG && dst == layout_.rank()) comm::divide(row, layout_.size());
}

// Hosts with fewer ranks send as many bytes as the largest one.
std::vector<Tensor> HostCollectives::all_gather(const Tensor& input, const HierarchicalCall& call) const {
  const auto whole = at::empty({layout_.hosts(), layout_.lanes(), input.numel()}, input.options());
  const auto own = whole[layout_.host()];
  Tensors parts;
  for (int local = 0; is_leader() && local < layout_.local_size(); ++local) parts.push_back(own[local]);
  call.run(host_, {.kind = CallKind::gather, .inputs = input, .outputs = parts, .root = 0});
  if (is_leader()) {
    const auto copy = own.clone();
    call.run_in_lane(first_lane(),
                     {.kind = CallKind::all_gather_into_tensor, .inputs = copy, .outputs = whole});
  }
  call.run(host_, {.kind = CallKind::broadcast, .outputs = whole, .root = 0});
  Tensors inputs;
  for (int rank = 0; rank < layout_.size(); ++rank)
    inputs.push_back(whole[layout_.host_of(rank)][layout_.local_rank_of(rank)]);
  return inputs;
}

void HostCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                 const HierarchicalCall& call) {
  if (!all_) {
    auto all = connect_all_();
    const std::lock_guard lock(all_mutex_);
    all_ = std::move(all);
  }
  Tensors sent, to_host, from_host;
  std::vector<std::int64_t> to(inputs.size()), from(outputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    if (layout_.host_of(static_cast<int>(rank)) == layout_.host()) {
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
  auto work = call.start(all_, {.kind = CallKind::all_to_all_single,
                                .inputs = sent_row,
                                .outputs = received,
                                .output_splits = from,
                                .input_splits = to});
  call.run(host_, {.kind = CallKind::all_to_all, .inputs = to_host, .outputs = from_host});
  call.wait(work);
  const auto parts = received.split_with_sizes(from);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (from[i] > 0) outputs[i].copy_(parts[i]);
}

void HostCollectives::barrier(const HierarchicalCall& call) const {
  call.run(host_, {});
  if (is_leader()) call.run_in_lane(first_lane(), {});
  call.run(host_, {});
}

}  // namespace lockstep::backends
