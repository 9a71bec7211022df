// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/chunks.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "backends/shm/call_request.h"
#include "backends/shm/kernels.h"

namespace lockstep::backends {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// [lane]: its part of the row. Then empty parts, so that every local rank has as many.
std::vector<Tensor> shares_of(const HostAndLanes& group, const Tensor& row) {
  const std::int64_t lanes = group.layout.lanes();
  const auto begin = [&](std::int64_t lane) { return std::min(lane, lanes) * row.numel() / lanes; };
  Tensors shares;
  for (int lane = 0; lane < group.layout.lanes_of_each() * group.layout.local_size(); ++lane)
    shares.push_back(row.slice(0, begin(lane), begin(lane + 1)));
  return shares;
}

void gather_shares(const HostAndLanes& group, const Tensors& shares, const HierarchicalCall& call) {
  const auto ranks = static_cast<std::size_t>(group.layout.local_size());
  const auto own = static_cast<std::size_t>(group.layout.local_rank());
  for (std::size_t first = 0; first < shares.size(); first += ranks) {
    call.run(group.host, {.kind = CallKind::all_gather,
                          .inputs = shares[first + own],
                          .outputs = at::TensorList(shares).slice(first, ranks)});
  }
}

// Each share becomes its sum on the rank that has its lane. With shares of one size, no rank reads the sums
// of the others.
void reduce_on_host(const HostAndLanes& group, const Tensor& chunk, const Tensors& shares, ReduceOp op,
                    const HierarchicalCall& call) {
  const auto is_as_large = [&](const Tensor& share) { return share.numel() == shares[0].numel(); };
  if (!std::ranges::all_of(shares, is_as_large))
    return call.run(group.host, {.kind = CallKind::all_reduce, .outputs = chunk, .op = op});
  const auto ranks = static_cast<std::size_t>(group.layout.local_size());
  const auto own = static_cast<std::size_t>(group.layout.local_rank());
  for (std::size_t first = 0; first < shares.size(); first += ranks) {
    call.run(group.host, {.kind = CallKind::reduce_scatter,
                          .inputs = at::TensorList(shares).slice(first, ranks),
                          .outputs = shares[first + own],
                          .op = op});
  }
}

// `row` becomes the reduction of the rows of `rows`, in their order.
void reduce_rows(const Tensor& row, const Tensor& rows, ReduceOp op) {
  const auto element = shm::element_of(row.scalar_type());
  const auto reduce = shm::reduce_kernel(element, static_cast<shm::Reduction>(op));
  std::vector<const void*> inputs;
  for (std::int64_t i = 0; i < rows.size(0); ++i) inputs.push_back(rows[i].const_data_ptr());
  void* const output = row.data_ptr();
  reduce(&output, 1, inputs.data(), static_cast<int>(inputs.size()), row.nbytes() / size_of(element));
}

// The sums that the hosts have for a part of this rank's output, and the calls that exchange them.
struct Exchange {
  Tensor output;
  Tensor received;  // [host]
  Tensors sums;     // kept until they are sent
  std::vector<Work> works;
};

// A rank is served by the lane of its own number, so it is the one that this lane has on its host.
Exchange exchange(const HostAndLanes& group, const Tensor& output, Tensors sums,
                  const HierarchicalCall& call) {
  Exchange result{.output = output,
                  .received = at::empty({group.layout.hosts(), output.numel()}, output.options()),
                  .sums = std::move(sums),
                  .works = {}};
  int number = group.layout.local_rank();
  for (std::size_t i = 0; i < group.lanes.size(); ++i, number += group.layout.local_size()) {
    std::vector<std::int64_t> sent;
    for (int host = 0; host < group.layout.hosts(); ++host)
      sent.push_back(group.layout.member(host, number) < 0 ? 0 : 1);
    const bool is_own = number == group.layout.local_rank();
    const std::vector<std::int64_t> taken(sent.size(), is_own ? 1 : 0);
    result.works.push_back(
        call.start(group.lanes[i], {.kind = CallKind::all_to_all_single,
                                    .inputs = result.sums[i],
                                    .outputs = is_own ? result.received : result.received.slice(0, 0, 0),
                                    .output_splits = taken,
                                    .input_splits = sent}));
  }
  return result;
}

// [lane of this rank]: one row for each host that has a rank of the lane's number.
std::vector<Tensor> sums_of_host(const HostAndLanes& group, const Tensors& parts, ReduceOp op,
                                 const HierarchicalCall& call) {
  const auto count = parts[0].numel();
  // Where a lane has no rank on a host.
  const auto spare = at::empty({count}, parts[0].options());
  const auto unused = at::empty_like(spare);
  Tensors sums;
  for (int first = 0; first < group.layout.lanes(); first += group.layout.local_size()) {
    const int own = first + group.layout.local_rank();
    const auto rows = at::empty({group.layout.hosts_with(own), count}, spare.options());
    std::int64_t next = 0;
    for (int host = 0; host < group.layout.hosts(); ++host) {
      if (group.layout.size_of(host) <= first) continue;
      Tensors inputs;
      for (int number = first; number < first + group.layout.local_size(); ++number) {
        const int rank = group.layout.member(host, number);
        inputs.push_back(rank < 0 ? spare : parts[static_cast<std::size_t>(rank)]);
      }
      const auto sum = group.layout.member(host, own) < 0 ? unused : rows[next++];
      call.run(group.host, {.kind = CallKind::reduce_scatter, .inputs = inputs, .outputs = sum, .op = op});
    }
    sums.push_back(rows);
  }
  return sums;
}

}  // namespace

void reduce_in_lanes(const HostAndLanes& group, const Tensor& row, ReduceOp op,
                     const HierarchicalCall& call) {
  const auto step = std::max<std::int64_t>(
      1, chunk_bytes(group.layout.hosts()) / static_cast<std::int64_t>(row.element_size()));
  Tensors before;  // the shares that the network reduces
  std::vector<Work> works;
  const auto finish = [&] {
    if (before.empty()) return;
    for (auto& work : works) call.wait(work);
    gather_shares(group, before, call);
  };
  for (std::int64_t begin = 0; begin < row.numel(); begin += step) {
    const auto chunk = row.slice(0, begin, std::min(begin + step, row.numel()));
    auto shares = shares_of(group, chunk);
    reduce_on_host(group, chunk, shares, op, call);
    std::vector<Work> next;
    auto own = static_cast<std::size_t>(group.layout.local_rank());
    for (const auto& lane : group.lanes) {
      next.push_back(call.start(lane, {.kind = CallKind::all_reduce, .outputs = shares[own], .op = op}));
      own += static_cast<std::size_t>(group.layout.local_size());
    }
    finish();
    before = std::move(shares);
    works = std::move(next);
  }
  finish();
}

void reduce_scatter(const HostAndLanes& group, const Tensor& output, const Tensors& parts, ReduceOp op,
                    const HierarchicalCall& call) {
  const auto bytes_of_row = group.layout.size() * static_cast<std::int64_t>(output.element_size());
  const auto step = std::max<std::int64_t>(1, chunk_bytes(group.layout.hosts()) / bytes_of_row);
  std::optional<Exchange> before;  // that the network makes
  const auto finish = [&] {
    if (!before) return;
    for (auto& work : before->works) call.wait(work);
    reduce_rows(before->output, before->received, op);
  };
  for (std::int64_t begin = 0; begin < output.numel(); begin += step) {
    const auto chunk_of = [&](const Tensor& row) {
      return row.slice(0, begin, std::min(begin + step, row.numel()));
    };
    Tensors chunks;
    for (const auto& part : parts) chunks.push_back(chunk_of(part));
    auto next = exchange(group, chunk_of(output), sums_of_host(group, chunks, op, call), call);
    finish();
    before = std::move(next);
  }
  finish();
}

}  // namespace lockstep::backends
