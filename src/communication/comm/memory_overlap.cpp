// SPDX-License-Identifier: BSD-3-Clause
#include "comm/memory_overlap.h"

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

namespace lockstep::comm {
namespace {

struct Written {
  Extent memory;
  std::size_t index;
};

using Sorted = c10::SmallVector<Written, 8>;  // by address

Sorted sorted_by_address(at::TensorList outputs) {
  Sorted sorted;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto memory = extent_of(outputs[i]);
    if (memory.begin < memory.end) sorted.push_back({memory, i});
  }
  std::ranges::sort(sorted, {}, [](const Written& each) { return each.memory.begin; });
  return sorted;
}

// Neighbours overlap if any two outputs do.
std::optional<Overlap> among(const Sorted& outputs) {
  const auto shared = std::ranges::adjacent_find(
      outputs, [](const Written& a, const Written& b) { return a.memory.overlaps(b.memory); });
  if (shared == outputs.end()) return std::nullopt;
  const auto [first, second] = std::minmax(shared->index, std::next(shared)->index);
  return Overlap{.output = first, .other = second};
}

// Part [rank] of `whole`, in equal parts of `bytes`.
Extent part_of(const Extent& whole, std::size_t bytes, int rank) {
  const auto begin = whole.begin + static_cast<std::size_t>(rank) * bytes;
  return {begin, begin + bytes};
}

// Whether the output's part from this rank is the input's part for this rank, and all that they share.
bool is_in_place(const Call& call, int rank, std::size_t output, std::size_t input) {
  const auto own = static_cast<std::size_t>(rank);
  const auto to = extent_of(call.outputs[output]);
  const auto from = extent_of(call.inputs[input]);
  switch (call.kind) {
    case CallKind::all_gather:
    case CallKind::gather:
      return output == own && to == from;
    case CallKind::scatter:
    case CallKind::reduce_scatter:
      return input == own && to == from;
    case CallKind::all_to_all:
      return output == own && input == own && to == from;
    case CallKind::all_gather_into_tensor:
      return from == part_of(to, call.inputs[0].nbytes(), rank);
    case CallKind::reduce_scatter_tensor:
      return to == part_of(from, call.outputs[0].nbytes(), rank);
    default:
      return false;
  }
}

// The in-place form of the call.
std::string in_place_form(const Call& call, int rank) {
  const auto part = [rank](const char* name, const char* whole, std::int64_t numel) {
    return fmt::format("{} may only be part [{}] of {}, elements {} to {}", name, rank, whole, rank * numel,
                       (rank + 1) * numel - 1);
  };
  switch (call.kind) {
    case CallKind::all_gather:
    case CallKind::gather:
      return fmt::format("input may only be output[{}] itself", rank);
    case CallKind::scatter:
    case CallKind::reduce_scatter:
      return fmt::format("output may only be input[{}] itself", rank);
    case CallKind::all_to_all:
      return fmt::format("only output[{0}] may be input[{0}] itself", rank);
    case CallKind::all_gather_into_tensor:
      return part("input", "output", call.inputs[0].numel());
    case CallKind::reduce_scatter_tensor:
      return part("output", "input", call.outputs[0].numel());
    default:
      return "this call does not work in place";
  }
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
}

// With the memory between the elements.
Extent span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto begin = placed(tensor).extent().begin;
  return {begin, begin + (static_cast<std::size_t>(last) + 1) * tensor.itemsize()};
}

using Dims = std::vector<std::pair<std::int64_t, std::int64_t>>;  // stride and size

Dims sorted_dims(const at::Tensor& tensor) {
  Dims dims;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) > 1) dims.emplace_back(tensor.stride(dim), tensor.size(dim));
  std::ranges::sort(dims);
  return dims;
}

// Whether two elements of a tensor without shared elements can be so far from each other. `count` dims are
// left, whose steps together are shorter than one of the next.
bool is_distance(std::int64_t distance, const Dims& dims, std::size_t count) {
  if (count == 0) return distance == 0;
  const auto [stride, size] = dims[count - 1];
  const auto steps = distance / stride;
  for (const auto k : {steps - 1, steps, steps + 1})
    if (std::abs(k) < size && std::abs(distance - k * stride) < stride &&
        is_distance(distance - k * stride, dims, count - 1))
      return true;
  return false;
}

// Whether an element of one lies where one of the other does: computed for equal forms, such as the columns
// of a tensor, else by a map of the memory that both are in.
bool share_elements(const at::Tensor& one, const at::Tensor& other) {
  const auto a = span_of(one), b = span_of(other);
  if (!a.overlaps(b)) return false;
  const auto size = one.itemsize();
  const auto begin = std::min(a.begin, b.begin);
  if (other.itemsize() != size || (a.begin - begin) % size != 0 || (b.begin - begin) % size != 0) return true;
  if (one.sizes() == other.sizes() && one.strides() == other.strides() && !has_shared_elements(one)) {
    const auto dims = sorted_dims(one);
    const auto bytes = static_cast<std::int64_t>(a.begin) - static_cast<std::int64_t>(b.begin);
    return is_distance(bytes / static_cast<std::int64_t>(size), dims, dims.size());
  }
  const auto elements = static_cast<std::int64_t>((std::max(a.end, b.end) - begin) / size);
  const auto map = at::zeros({elements}, at::kBool);
  const auto in_map = [&](const at::Tensor& tensor, const Extent& span) {
    return map.as_strided(tensor.sizes(), tensor.strides(),
                          static_cast<std::int64_t>((span.begin - begin) / size));
  };
  in_map(one, a).fill_(true);
  return in_map(other, b).any().item<bool>();
}

// "output", or "output[2]".
std::string name_of(const char* text, bool is_list, std::size_t index) {
  return is_list ? fmt::format("{}[{}]", text, index) : text;
}

}  // namespace

// A dimension's steps are shorter than what lies within a step.
bool has_shared_elements(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) return false;
  std::int64_t extent = 1;
  for (const auto& [stride, size] : sorted_dims(tensor)) {
    if (stride < extent) return true;
    extent += stride * (size - 1);
  }
  return false;
}

std::optional<Overlap> find_overlap_with_holes(
    at::TensorList outputs, at::TensorList inputs,
    c10::function_ref<bool(std::size_t output, std::size_t input)> is_allowed) {
  if (std::ranges::all_of(outputs, is_dense) && std::ranges::all_of(inputs, is_dense)) return std::nullopt;
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const bool has_holes = !is_dense(outputs[output]);
    for (std::size_t other = output + 1; other < outputs.size(); ++other) {
      if ((has_holes || !is_dense(outputs[other])) && share_elements(outputs[output], outputs[other]))
        return Overlap{output, other};
    }
    for (std::size_t input = 0; input < inputs.size(); ++input) {
      if ((has_holes || !is_dense(inputs[input])) && share_elements(outputs[output], inputs[input]) &&
          !is_allowed(output, input))
        return Overlap{output, input, true};
    }
  }
  return std::nullopt;
}

Extent extent_of(const at::Tensor& tensor) { return is_dense(tensor) ? placed(tensor).extent() : Extent{}; }

std::optional<Overlap> find_overlap(
    at::TensorList outputs, at::TensorList inputs,
    c10::function_ref<bool(std::size_t output, std::size_t input)> is_allowed) {
  const auto sorted = sorted_by_address(outputs);
  if (auto overlap = among(sorted)) return overlap;
  for (std::size_t input = 0; input < inputs.size() && !sorted.empty(); ++input) {
    const auto read = extent_of(inputs[input]);
    auto next =
        std::ranges::upper_bound(sorted, read.begin, {}, [](const Written& each) { return each.memory.end; });
    for (; next != sorted.end() && next->memory.overlaps(read); ++next) {
      if (!is_allowed(next->index, input)) return Overlap{next->index, input, true};
    }
  }
  return std::nullopt;
}

std::string overlap_complaint(const Call& call, int rank) {
  const auto overlap = find_overlap(call.outputs, call.inputs, [&](std::size_t output, std::size_t input) {
    return is_in_place(call, rank, output, input);
  });
  if (!overlap) return {};
  const auto output = name_of("output", has_output_list(call.kind), overlap->output);
  if (!overlap->is_input) {
    return fmt::format(
        "{} and output[{}] share memory; each output needs memory of its own. Make a tensor for each: a copy "
        "of an at::Tensor refers to the same memory",
        output, overlap->other);
  }
  const auto input = name_of("input", has_input_list(call.kind), overlap->other);
  return fmt::format("{} and {} share memory; {}. Pass {}.clone()", output, input, in_place_form(call, rank),
                     input);
}

}  // namespace lockstep::comm
