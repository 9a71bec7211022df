// SPDX-License-Identifier: BSD-3-Clause
#include "comm/emulated_reductions.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"

namespace lockstep::comm {
namespace {

// As wide as the number. Its own inverse.
template <class Bits>
Bits flip(Bits bits) {
  return bits < 0 ? static_cast<Bits>(bits ^ std::numeric_limits<Bits>::max()) : bits;
}

template <class Bits>
struct Format {
  using Type = Bits;
  Bits infinity;  // the bits of the greatest number
};

template <class Body>
void with_format(c10::ScalarType dtype, const Body& body) {
  switch (dtype) {
    case at::kDouble:
      return body(Format<std::int64_t>{0x7FF0'0000'0000'0000});
    case at::kFloat:
      return body(Format<std::int32_t>{0x7F80'0000});
    case at::kBFloat16:
      return body(Format<std::int16_t>{0x7F80});
    default:
      return body(Format<std::int16_t>{0x7C00});
  }
}

// The type in which Gloo carries the integers.
template <class Bits>
using Carried = std::conditional_t<sizeof(Bits) == 8, std::int64_t, std::int32_t>;

}  // namespace

bool compares_floats(ReduceOp op, const at::Tensor& numbers) {
  const bool compares = op == ReduceOp::MIN || op == ReduceOp::MAX;
  const auto dtype = numbers.scalar_type();
  return compares && numbers.is_cpu() &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16);
}

at::Tensor to_ordered_bits(const at::Tensor& numbers, ReduceOp op) {
  const auto ordered =
      at::empty({numbers.numel()}, numbers.scalar_type() == at::kDouble ? at::kLong : at::kInt);
  with_format(numbers.scalar_type(), [&](auto format) {
    using Bits = typename decltype(format)::Type;
    constexpr auto kMax = std::numeric_limits<Bits>::max();
    const Bits winner = op == ReduceOp::MAX ? kMax : std::numeric_limits<Bits>::min();
    const auto* const in = static_cast<const Bits*>(numbers.const_data_ptr());
    auto* const out = static_cast<Carried<Bits>*>(ordered.data_ptr());
    for (std::int64_t i = 0; i < ordered.numel(); ++i)
      out[i] = (in[i] & kMax) > format.infinity ? winner : flip(in[i]);
  });
  return ordered;
}

void from_ordered_bits(const at::Tensor& ordered, const at::Tensor& numbers) {
  with_format(numbers.scalar_type(), [&](auto format) {
    using Bits = typename decltype(format)::Type;
    const auto* const in = static_cast<const Carried<Bits>*>(ordered.const_data_ptr());
    auto* const out = static_cast<Bits*>(numbers.data_ptr());
    for (std::int64_t i = 0; i < ordered.numel(); ++i) out[i] = flip(static_cast<Bits>(in[i]));
  });
}

namespace {

// The greatest number of dimensions of a sparse tensor that is all-reduced.
constexpr std::int64_t kSparseDims = 16;

// What ranks tell each other of a sparse tensor: the number of entries, whether it is summed, and then what
// must be equal: dtype, sparse dimensions, dimensions, and sizes.
at::Tensor sparse_shape(const at::Tensor& tensor, ReduceOp op) {
  std::vector<std::int64_t> numbers{tensor._nnz(), op == ReduceOp::SUM ? 1 : 0,
                                    static_cast<std::int64_t>(tensor.scalar_type()), tensor.sparse_dim(),
                                    tensor.dim()};
  const auto sizes = tensor.sizes().slice(0, static_cast<std::size_t>(std::min(tensor.dim(), kSparseDims)));
  numbers.insert(numbers.end(), sizes.begin(), sizes.end());
  numbers.resize(5 + kSparseDims);
  return at::tensor(numbers, at::kLong);
}

std::string describe_sparse(const std::int64_t* numbers) {
  return fmt::format("{} [{}] with {} sparse dimensions",
                     c10::toString(static_cast<at::ScalarType>(numbers[2])),
                     fmt::join(numbers + 5, numbers + 5 + numbers[4], ", "), numbers[3]);
}

// What one rank cannot reduce is an error on all.
void check_sparse_shapes(const std::vector<at::Tensor>& shapes, int rank) {
  const Reporter by{rank, static_cast<int>(shapes.size())};
  const auto about = [](std::size_t other) { return ErrorDetails{.ranks = {static_cast<int>(other)}}; };
  std::string expected;
  for (std::size_t other = 0; other < shapes.size(); ++other) {
    const auto* const numbers = shapes[other].const_data_ptr<std::int64_t>();
    if (numbers[1] == 0) {
      throw_error<ArgumentError>(by, about(other),
                                 "a sparse tensor can be all-reduced with SUM only (rank {})", other);
    }
    if (numbers[4] > kSparseDims) {
      throw_error<ArgumentError>(
          by, about(other),
          "a sparse tensor of {} dimensions cannot be all-reduced; {} are the most (rank {})", numbers[4],
          kSparseDims, other);
    }
    const auto found = describe_sparse(numbers);
    if (other == 0) expected = found;
    if (found == expected) continue;
    throw_error<DesyncError>(
        by, about(other),
        "all_reduce of a sparse tensor: rank 0 has {}, rank {} has {}; give tensors of one "
        "shape and type on all ranks",
        expected, other, found);
  }
}

}  // namespace

void sum_sparse(at::Tensor& tensor, ReduceOp op, int rank, int size, const Gather& gather) {
  const at::NoGradGuard no_grad;
  const auto own = tensor.coalesce();
  const auto like = [&](const at::Tensor& input) {
    std::vector<at::Tensor> outputs;
    for (int other = 0; other < size; ++other) outputs.push_back(at::empty_like(input));
    return outputs;
  };
  const auto shape_here = sparse_shape(own, op);
  const auto shapes = like(shape_here);
  gather(shape_here, shapes);
  check_sparse_shapes(shapes, rank);
  std::vector<std::int64_t> counts;
  for (const auto& each : shapes) counts.push_back(each[0].item<std::int64_t>());
  const auto most = std::ranges::max(counts);
  // With as many rows as the longest: not every backend gathers inputs of several sizes.
  const auto all_rows_of = [&](const at::Tensor& rows) {
    auto shape = rows.sizes().vec();
    shape[0] = most;
    const auto padded = at::zeros(shape, rows.options());
    padded.narrow(0, 0, rows.size(0)).copy_(rows);
    auto all = like(padded);
    gather(padded, all);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = all[i].narrow(0, 0, counts[i]);
    return at::cat(all);
  };
  const auto indices = all_rows_of(own.indices().t());
  const auto sum = at::sparse_coo_tensor(indices.t(), all_rows_of(own.values()), tensor.sizes());
  tensor.copy_(sum.coalesce());
}

}  // namespace lockstep::comm
