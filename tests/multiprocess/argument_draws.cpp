// SPDX-License-Identifier: BSD-3-Clause
#include "multiprocess/argument_draws.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kMargin = 3;  // elements before and after a tensor with Home::offset
constexpr int kMarginValue = 1;

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t number) {
    std::seed_seq seeds{seed, number};
    engine_.seed(seeds);
  }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(limit));
  }
  bool once_in(std::int64_t count) { return below(count) == 0; }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

bool has_one_tensor(CallKind kind) {
  return kind == CallKind::all_reduce || kind == CallKind::broadcast || kind == CallKind::reduce ||
         kind == CallKind::send;
}
bool is_exchange(CallKind kind) {
  return kind == CallKind::all_to_all || kind == CallKind::all_to_all_single;
}

bool is_defined(ReduceOp op, at::ScalarType dtype) {
  const bool bitwise = op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
  if (c10::isComplexType(dtype)) return op == ReduceOp::SUM || op == ReduceOp::AVG;
  return c10::isIntegralType(dtype, true) ? op != ReduceOp::AVG : !bitwise;
}

ReduceOp operation_of(Random& random, at::ScalarType dtype, bool is_wanted) {
  std::vector<ReduceOp> all;
  for (int op = 0; op <= static_cast<int>(ReduceOp::BXOR); ++op) {
    if (is_defined(static_cast<ReduceOp>(op), dtype) == is_wanted) all.push_back(static_cast<ReduceOp>(op));
  }
  return random.one_of(all);
}

// Mostly small; some go through the backends' paths for large tensors.
Shape shape_of(Random& random) {
  if (random.once_in(60)) return {40'000 + random.below(60'000)};
  if (random.once_in(20)) return {500 + random.below(3'000)};
  Shape shape;
  for (auto dims = random.below(5); dims > 0; --dims)
    shape.push_back(random.once_in(12) ? 0 : 1 + random.below(4));
  return shape;
}

// Small whole numbers, whose sums and products are exact in every dtype, in any order.
Tensor values(const Draw& draw, int from, int part, const Shape& shape) {
  const auto numel = c10::multiply_integers(shape);
  const auto start = static_cast<std::int64_t>(draw.number % 1'000) + 3 * from + 5 * part;
  const auto numbers = torch::arange(numel, at::kLong).mul_(7).add_(start).remainder_(4);
  if (draw.dtype == at::kBool) return numbers.remainder_(2).to(at::kBool).view(shape);
  if (!c10::isComplexType(draw.dtype)) return numbers.to(draw.dtype).view(shape);
  return torch::complex(numbers.to(at::kDouble), numbers.add(1).to(at::kDouble)).to(draw.dtype).view(shape);
}

Shape with_rows(const Shape& shape, std::int64_t rows) {
  auto result = shape;
  result[0] = rows;
  return result;
}

// What `from` has for `to`.
Tensor sent(const Draw& draw, int from, int to) {
  if (!is_exchange(draw.kind)) return values(draw, from, to, draw.shape);
  const auto rows = draw.rows[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  return values(draw, from, to, with_rows(draw.shape, rows));
}

bool is_same(const Tensor& a, const Tensor& b) {
  const bool is_unsigned = c10::isBarebonesUnsignedType(b.scalar_type());  // LibTorch compares none
  return is_unsigned ? torch::equal(a.detach().to(at::kLong), b.to(at::kLong)) : torch::equal(a.detach(), b);
}

// Complex numbers are pairs of reals.
Tensor mean(const Tensor& sum, int size) {
  return sum.is_complex() ? torch::view_as_complex(torch::view_as_real(sum).div(size)) : sum.div(size);
}

Tensor reduced(const Draw& draw, Tensors all) {
  if (draw.op == ReduceOp::AVG) return mean(torch::stack(all).sum(0).to(draw.dtype), draw.size);
  const bool is_boolean = draw.dtype == at::kBool;
  // LibTorch computes little with the others.
  for (auto& each : all)
    if (c10::isBarebonesUnsignedType(draw.dtype)) each = each.to(at::kLong);
  auto result = all.front().clone();
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto& next = all[i];
    switch (draw.op) {
      case ReduceOp::SUM:
        result = is_boolean ? result.logical_or(next) : result + next;
        break;
      case ReduceOp::PRODUCT:
        result = is_boolean ? result.logical_and(next) : result * next;
        break;
      case ReduceOp::MIN:
        result = torch::minimum(result, next);
        break;
      case ReduceOp::MAX:
        result = torch::maximum(result, next);
        break;
      case ReduceOp::BAND:
        result = result.bitwise_and(next);
        break;
      case ReduceOp::BOR:
        result = result.bitwise_or(next);
        break;
      default:
        result = result.bitwise_xor(next);
    }
  }
  return result.to(draw.dtype);
}

Tensors of_all(const Draw& draw, int part) {
  Tensors all;
  for (int rank = 0; rank < draw.size; ++rank) all.push_back(sent(draw, rank, part));
  return all;
}

Tensors for_all(const Draw& draw, int from) {
  Tensors all;
  for (int rank = 0; rank < draw.size; ++rank) all.push_back(sent(draw, from, rank));
  return all;
}

Tensors rows_of(const Tensors& tensors) {
  Tensors rows;
  for (const auto& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  return rows;
}

// The outputs of a rank. An undefined one is unspecified.
Tensors expected(const Draw& draw, int rank) {
  switch (draw.kind) {
    case CallKind::all_reduce:
      return {reduced(draw, of_all(draw, 0))};
    case CallKind::broadcast:
      return {sent(draw, draw.root, 0)};
    case CallKind::reduce:
      return {rank == draw.root ? reduced(draw, of_all(draw, 0)) : Tensor()};
    case CallKind::all_gather:
      return of_all(draw, 0);
    case CallKind::all_gather_into_tensor:
      return {torch::cat(rows_of(of_all(draw, 0)))};
    case CallKind::gather:
      return rank == draw.root ? of_all(draw, 0) : Tensors();
    case CallKind::scatter:
      return {sent(draw, draw.root, rank)};
    case CallKind::reduce_scatter:
    case CallKind::reduce_scatter_tensor:
      return {reduced(draw, of_all(draw, rank))};
    case CallKind::all_to_all:
      return of_all(draw, rank);
    case CallKind::all_to_all_single:
      return {torch::cat(of_all(draw, rank))};
    case CallKind::send:
      return rank == draw.peer ? Tensors{sent(draw, draw.root, draw.peer)} : Tensors();
    default:
      return {};
  }
}

Tensors inputs_of(const Draw& draw, int rank) {
  switch (draw.kind) {
    case CallKind::all_gather:
    case CallKind::all_gather_into_tensor:
    case CallKind::gather:
      return {sent(draw, rank, 0)};
    case CallKind::scatter:
      return rank == draw.root ? for_all(draw, rank) : Tensors();
    case CallKind::reduce_scatter:
    case CallKind::all_to_all:
      return for_all(draw, rank);
    case CallKind::reduce_scatter_tensor:
      return {torch::cat(rows_of(for_all(draw, rank)))};
    case CallKind::all_to_all_single:
      return {torch::cat(for_all(draw, rank))};
    case CallKind::send:
      return rank == draw.root ? Tensors{sent(draw, rank, draw.peer)} : Tensors();
    default:
      return {};
  }
}

// Places the values of tensors where the draw wants them.
class Placement {
 public:
  Placement(const Draw& draw, const Allocate& allocate, Tensors& surroundings)
      : draw_(draw), allocate_(allocate), surroundings_(surroundings) {}

  Tensor place(const Tensor& content) const {
    const auto place = room(content.sizes().vec());
    place.detach().copy_(content);
    return place;
  }
  Tensors place_each(const Tensors& contents) const {
    Tensors placed;
    for (const auto& content : contents) placed.push_back(place(content));
    return placed;
  }

 private:
  Tensor room(const Shape& shape) const {
    Shape in_memory;
    for (const auto dim : order_of(shape)) in_memory.push_back(shape[static_cast<std::size_t>(dim)]);
    const auto memory = row(c10::multiply_integers(shape)).view(in_memory);
    Shape back(shape.size());
    const auto order = order_of(shape);
    for (std::size_t i = 0; i < order.size(); ++i)
      back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    auto result = memory.permute(back);
    if (draw_.home == Home::leaf && c10::isFloatingType(draw_.dtype)) result.requires_grad_(true);
    return result;
  }
  Shape order_of(const Shape& shape) const {
    if (draw_.order.size() == shape.size()) return draw_.order;
    Shape order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  Tensor row(std::int64_t numel) const {
    if (draw_.home == Home::heap) return allocate_(numel, draw_.dtype);
    if (draw_.home != Home::offset) return torch::zeros({numel}, draw_.dtype);
    surroundings_.push_back(torch::full({numel + 2 * kMargin}, kMarginValue, draw_.dtype));
    return surroundings_.back().narrow(0, kMargin, numel);
  }

  const Draw& draw_;
  const Allocate& allocate_;
  Tensors& surroundings_;
};

// The in-place form: this rank's part of one argument is the other one.
void join(const Draw& draw, int rank, Arguments& arguments) {
  auto& in = arguments.inputs;
  auto& out = arguments.outputs;
  const auto own = static_cast<std::size_t>(rank);
  const auto part_of = [&](const Tensor& whole, const Tensor& part) {
    return whole.detach().view(-1).narrow(0, rank * part.numel(), part.numel()).view(part.sizes());
  };
  const auto replace = [](Tensor& tensor, const Tensor& place) {
    place.detach().copy_(tensor.detach());
    tensor = place;
  };
  switch (draw.kind) {
    case CallKind::all_gather:
      return replace(in[0], out[own]);
    case CallKind::gather:
      return out.empty() ? void() : replace(in[0], out[own]);
    case CallKind::all_gather_into_tensor:
      return replace(in[0], part_of(out[0], in[0]));
    case CallKind::scatter:
      if (!in.empty()) out[0] = in[own];
      return;
    case CallKind::reduce_scatter:
      out[0] = in[own];
      return;
    case CallKind::reduce_scatter_tensor:
      out[0] = part_of(in[0], out[0]);
      return;
    case CallKind::all_to_all:
      out[own] = in[own];
      return;
    default:
      return;
  }
}

}  // namespace

Draw draw_of(std::uint64_t seed, std::uint64_t number, int size, const std::vector<at::ScalarType>& dtypes) {
  static const std::vector<CallKind> kinds{
      CallKind::all_reduce, CallKind::broadcast,      CallKind::reduce,
      CallKind::all_gather, CallKind::gather,         CallKind::all_gather_into_tensor,
      CallKind::scatter,    CallKind::reduce_scatter, CallKind::reduce_scatter_tensor,
      CallKind::all_to_all, CallKind::send,           CallKind::all_to_all_single,
      CallKind::barrier};
  Random random(seed, number);
  Draw draw{.number = number, .size = size, .kind = random.one_of(kinds), .dtype = random.one_of(dtypes)};
  draw.op = operation_of(random, draw.dtype, true);
  draw.bad_op = operation_of(random, draw.dtype, false);
  draw.root = static_cast<int>(random.below(size));
  draw.peer = static_cast<int>((draw.root + 1 + random.below(size - 1)) % size);
  draw.any_source = random.once_in(3);
  draw.shape = shape_of(random);
  if (is_exchange(draw.kind) && draw.shape.empty()) draw.shape = {3};
  if (has_one_tensor(draw.kind)) {
    draw.order.resize(draw.shape.size());
    std::iota(draw.order.begin(), draw.order.end(), 0);
    if (random.once_in(2)) std::ranges::reverse(draw.order);
    if (random.once_in(3) && draw.order.size() > 1) std::swap(draw.order[0], draw.order[1]);
  }
  draw.even_splits = random.once_in(3);
  for (int from = 0; is_exchange(draw.kind) && from < size; ++from) {
    auto& row = draw.rows.emplace_back();
    for (int to = 0; to < size; ++to)
      row.push_back(draw.even_splits ? draw.shape[0] : random.below(draw.shape[0] + 2));
  }
  draw.home = static_cast<Home>(random.below(5));
  draw.in_place = random.once_in(3);
  draw.asynchronous = random.once_in(3);
  if (random.once_in(3)) {
    draw.flaw = static_cast<Flaw>(random.below(kFlaws));
    draw.flawed_rank = random.once_in(2) ? static_cast<int>(random.below(size)) : -1;
    if (draw.is_refused()) draw.in_place = false;
  }
  return draw;
}

Arguments arguments_of(const Draw& draw, int rank, const Allocate& allocate) {
  const c10::InferenceMode guard(draw.home == Home::inference);
  Arguments arguments{
      .root = draw.root, .peer = draw.peer, .tag = static_cast<int>(draw.number % 30'000), .op = draw.op};
  const Placement placement(draw, allocate, arguments.surroundings);
  arguments.inputs = placement.place_each(inputs_of(draw, rank));
  if (has_one_tensor(draw.kind) && !draw.is_message()) {
    arguments.outputs = {placement.place(sent(draw, rank, 0))};
  } else {
    for (const auto& result : expected(draw, rank))
      arguments.outputs.push_back(placement.place(torch::full_like(result, 2)));
  }
  if (draw.kind == CallKind::all_gather_into_tensor || draw.kind == CallKind::reduce_scatter_tensor) {
    arguments.outputs[0] = arguments.outputs[0].detach();
  }
  if (is_exchange(draw.kind) && !draw.even_splits) {
    for (int other = 0; other < draw.size; ++other) {
      arguments.input_splits.push_back(
          draw.rows[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)]);
      arguments.output_splits.push_back(
          draw.rows[static_cast<std::size_t>(other)][static_cast<std::size_t>(rank)]);
    }
  }
  if (draw.in_place) join(draw, rank, arguments);
  if (draw.is_flawed(rank)) spoil(draw, rank, arguments);
  return arguments;
}

std::string fault_of(const Draw& draw, int rank, const Arguments& arguments) {
  const auto results = expected(draw, rank);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined() || is_same(arguments.outputs[i], results[i])) continue;
    return fmt::format("output {} is wrong", i);
  }
  const auto inputs = inputs_of(draw, rank);
  for (std::size_t i = 0; i < inputs.size() && !draw.in_place; ++i) {
    if (!is_same(arguments.inputs[i], inputs[i])) return fmt::format("input {} has changed", i);
  }
  for (const auto& memory : arguments.surroundings) {
    const auto margin = torch::full({kMargin}, kMarginValue, memory.options());
    const bool same = is_same(memory.narrow(0, 0, kMargin), margin) &&
                      is_same(memory.narrow(0, memory.size(0) - kMargin, kMargin), margin);
    if (!same) return "memory beside a tensor has changed";
  }
  return {};
}

std::string Draw::describe() const {
  return fmt::format(
      "{} {} of {}[{}] in memory order [{}], root {}, peer {}{}, rows {}, home {}{}{}{}, flaw {} of rank {}",
      name_of(kind), name_of(op), c10::toString(dtype), fmt::join(shape, ", "), fmt::join(order, ", "), root,
      peer, any_source ? " (any source)" : "", rows, static_cast<int>(home), in_place ? ", in place" : "",
      asynchronous ? ", async" : "", even_splits ? ", even" : "", static_cast<int>(flaw), flawed_rank);
}

}  // namespace lockstep::testing
