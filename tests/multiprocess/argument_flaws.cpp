// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>

#include "multiprocess/argument_draws.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using Counts = std::vector<std::int64_t>;

std::int64_t rows_between(const Draw& draw, int from, int to) {
  const auto rows = draw.rows[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  return draw.shape[0] == 0 ? 0 : rows * (draw.numel() / draw.shape[0]);
}

Counts exchanged(const Draw& draw, int rank, bool is_input) {
  Counts counts;
  for (int other = 0; other < draw.size; ++other)
    counts.push_back(is_input ? rows_between(draw, rank, other) : rows_between(draw, other, rank));
  if (draw.kind == CallKind::all_to_all_single)
    counts = {std::accumulate(counts.begin(), counts.end(), std::int64_t{0})};
  return counts;
}

// The elements of each output that a rank passes.
Counts output_counts(const Draw& draw, int rank) {
  const auto one = draw.numel();
  const Counts each(static_cast<std::size_t>(draw.size), one);
  switch (draw.kind) {
    case CallKind::barrier:
      return {};
    case CallKind::send:
      return rank == draw.peer ? Counts{one} : Counts{};
    case CallKind::gather:
      return rank == draw.root ? each : Counts{};
    case CallKind::all_gather:
      return each;
    case CallKind::all_gather_into_tensor:
      return {draw.size * one};
    case CallKind::all_to_all:
    case CallKind::all_to_all_single:
      return exchanged(draw, rank, false);
    default:
      return {one};
  }
}

Counts input_counts(const Draw& draw, int rank) {
  const auto one = draw.numel();
  const Counts each(static_cast<std::size_t>(draw.size), one);
  switch (draw.kind) {
    case CallKind::send:
      return rank == draw.root ? Counts{one} : Counts{};
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
    case CallKind::gather:
      return {one};
    case CallKind::scatter:
      return rank == draw.root ? each : Counts{};
    case CallKind::reduce_scatter:
      return each;
    case CallKind::reduce_scatter_tensor:
      return {draw.size * one};
    case CallKind::all_to_all:
    case CallKind::all_to_all_single:
      return exchanged(draw, rank, true);
    default:
      return {};
  }
}

// The place of this rank's part in a list, or of the only tensor.
template <class List>
std::size_t own_of(const List& list, int rank) {
  return list.size() > 1 ? static_cast<std::size_t>(rank) : 0;
}

bool can_have(const Draw& draw, int rank) {
  const auto out = output_counts(draw, rank);
  const auto in = input_counts(draw, rank);
  const bool both = !out.empty() && !in.empty();
  const bool has_root = draw.kind == CallKind::broadcast || draw.kind == CallKind::reduce ||
                        draw.kind == CallKind::gather || draw.kind == CallKind::scatter;
  const bool names_peer = draw.is_message() && (rank == draw.root || !draw.any_source);
  switch (draw.flaw) {
    case Flaw::none:
      return false;
    case Flaw::shared_outputs:
      return out.size() > 1 && out[0] > 0;
    case Flaw::aliased_outputs:
      return out.size() > 1 && out[0] > 0 && out[1] > 0;
    case Flaw::output_over_input:
      return both && std::ranges::all_of(out, [](auto count) { return count > 0; }) &&
             std::ranges::all_of(in, [](auto count) { return count > 0; });
    case Flaw::shifted_over_input:
      return both && out[own_of(out, rank)] > 1 && in[own_of(in, rank)] > 1;
    case Flaw::expanded_output:
    case Flaw::overlapping_output:
    case Flaw::holes_in_output:
    case Flaw::undefined_output:
    case Flaw::sparse_output:
    case Flaw::meta_output:
    case Flaw::freed_output:
      return !out.empty();
    case Flaw::expanded_input:
    case Flaw::undefined_input:
      return !in.empty();
    case Flaw::lazy_conjugate:
      return c10::isComplexType(draw.dtype) && !(out.empty() && in.empty());
    case Flaw::lazy_negation:
      return c10::isFloatingType(draw.dtype) && !(out.empty() && in.empty());
    case Flaw::other_dtype:
    case Flaw::other_shape:
      return both;
    case Flaw::missing_part:
      return out.size() > 1 || in.size() > 1;
    case Flaw::bad_root:
      return has_root || names_peer;
    case Flaw::bad_operation:
      return draw.kind == CallKind::all_reduce || draw.kind == CallKind::reduce ||
             draw.kind == CallKind::reduce_scatter || draw.kind == CallKind::reduce_scatter_tensor;
    case Flaw::bad_splits:
      return draw.kind == CallKind::all_to_all_single;
    case Flaw::message_to_itself:
      return names_peer;
    case Flaw::negative_tag:
      return draw.is_message();
  }
  return false;
}

// A tensor with a storage of its own over the memory of `row`.
Tensor alias(const Tensor& row, std::int64_t begin, at::IntArrayRef shape) {
  auto* const data =
      static_cast<std::byte*>(row.data_ptr()) + begin * static_cast<std::int64_t>(row.itemsize());
  return torch::from_blob(
      data, shape, [row](void*) {}, row.options());
}

// Both become parts of one row, of which they share one element.
void overlap(Tensor& first, Tensor& second) {
  const auto row = torch::zeros({first.numel() + second.numel() - 1}, first.options().requires_grad(false));
  const auto begin = first.numel() - 1;
  first = alias(row, 0, first.sizes().vec());
  second = alias(row, begin, second.sizes().vec());
}

void put_output_over_input(const Draw& draw, int rank, Arguments& arguments) {
  auto& in = arguments.inputs;
  auto& out = arguments.outputs;
  const auto next = static_cast<std::size_t>((rank + 1) % draw.size);
  const auto part_of = [&](const Tensor& whole, const Tensor& part) {
    return whole.detach().view(-1).narrow(0, static_cast<std::int64_t>(next) * part.numel(), part.numel());
  };
  switch (draw.kind) {
    case CallKind::all_gather:
    case CallKind::gather:
      in[0] = out[next];
      return;
    case CallKind::all_gather_into_tensor:
      in[0] = part_of(out[0], in[0]);
      return;
    case CallKind::scatter:
    case CallKind::reduce_scatter:
      out[0] = in[next];
      return;
    case CallKind::reduce_scatter_tensor:
      out[0] = part_of(in[0], out[0]);
      return;
    case CallKind::all_to_all:
      out[next] = in[own_of(in, rank)];
      return;
    default: {
      const auto row =
          torch::zeros({std::max(in[0].numel(), out[0].numel())}, in[0].options().requires_grad(false));
      in[0] = alias(row, 0, in[0].sizes().vec());
      out[0] = alias(row, 0, out[0].sizes().vec());
    }
  }
}

at::ScalarType other_than(at::ScalarType dtype) { return dtype == at::kFloat ? at::kDouble : at::kFloat; }

}  // namespace

bool Draw::is_flawed(int rank) const {
  return takes_part(rank) && (flawed_rank < 0 || flawed_rank == rank) && can_have(*this, rank);
}

bool Draw::is_refused() const {
  bool any = false;
  for (int rank = 0; rank < size; ++rank) any = any || is_flawed(rank);
  return any;
}

void spoil(const Draw& draw, int rank, Arguments& arguments) {
  auto& in = arguments.inputs;
  auto& out = arguments.outputs;
  const auto plain = at::TensorOptions().dtype(draw.dtype);
  auto& any = out.empty() && !in.empty() ? in : out;
  switch (draw.flaw) {
    case Flaw::none:
      return;
    case Flaw::shared_outputs:
      out[1] = out[0];
      return;
    case Flaw::aliased_outputs:
      return overlap(out[0], out[1]);
    case Flaw::output_over_input:
      return put_output_over_input(draw, rank, arguments);
    case Flaw::shifted_over_input:
      return overlap(out[own_of(out, rank)], in[own_of(in, rank)]);
    case Flaw::expanded_output:
      out[0] = torch::zeros({1}, plain).expand({3});
      return;
    case Flaw::overlapping_output:
      out[0] = torch::zeros({4}, plain).as_strided({2, 2}, {1, 1});
      return;
    case Flaw::holes_in_output:
      out[0] = torch::zeros({4, 4}, plain).select(1, 0);
      return;
    case Flaw::expanded_input:
      in[0] = torch::zeros({1}, plain).expand({3});
      return;
    case Flaw::undefined_output:
      out[0] = Tensor();
      return;
    case Flaw::undefined_input:
      in[0] = Tensor();
      return;
    case Flaw::lazy_conjugate:
      any[0] = any[0].detach().conj();
      return;
    case Flaw::lazy_negation:
      any[0] = torch::_neg_view(any[0].detach());
      return;
    case Flaw::sparse_output:
      out[0] = torch::sparse_coo_tensor({2}, plain);
      return;
    case Flaw::meta_output:
      out[0] = torch::empty({2}, plain.device(at::kMeta));
      return;
    case Flaw::freed_output:
      out[0] = torch::zeros({3}, plain);
      out[0].storage().unsafeGetStorageImpl()->set_nbytes(1);
      return;
    case Flaw::other_dtype:
      out[own_of(out, rank)] = torch::zeros(out[own_of(out, rank)].sizes(), other_than(draw.dtype));
      return;
    case Flaw::other_shape: {
      auto shape = out[own_of(out, rank)].sizes().vec();
      if (shape.empty()) shape = {1};
      ++shape[0];
      if (c10::multiply_integers(shape) == out[own_of(out, rank)].numel()) shape = {7};
      out[own_of(out, rank)] = torch::zeros(shape, plain);
      return;
    }
    case Flaw::missing_part:
      (out.size() > 1 ? out : in).pop_back();
      return;
    case Flaw::bad_root:
      arguments.root = arguments.peer = rank % 2 == 0 ? draw.size : -1;
      return;
    case Flaw::bad_operation:
      arguments.op = draw.bad_op;
      return;
    case Flaw::bad_splits:
      arguments.input_splits.assign(static_cast<std::size_t>(draw.size), -1);
      return;
    case Flaw::message_to_itself:
      arguments.root = arguments.peer = rank;
      return;
    case Flaw::negative_tag:
      arguments.tag = -1;
      return;
  }
}

}  // namespace lockstep::testing
