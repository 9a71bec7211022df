// SPDX-License-Identifier: BSD-3-Clause
// Every reduction of every dtype with the values that arithmetic treats apart, on each rank, over every
// backend. What a backend may do otherwise is in docs/reductions.md, and here in rounds_each_addition().
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "support/error_of.h"

namespace lockstep::testing::special_values_test {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using enum ReduceOp;

// shm adds halves in fp32 and rounds once.
bool rounds_each_addition(const ProcessGroup& group) { return group.backend_name() != "shm"; }

// [rank]: so many columns, each with one special value on one rank or on all, repeated because Gloo computes
// the parts of a tensor on different ranks, and several elements at once.
Tensors columns(const Tensor& special, int ranks) {
  const auto others = torch::arange(1, ranks + 1).to(special.scalar_type());
  Tensors all;  // one column each
  for (std::int64_t i = 0; i < special.numel(); ++i) {
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(others.clone());
      all.back()[rank] = special[i];
    }
    all.push_back(special[i].expand({ranks}).clone());
    if (ranks > 2) continue;  // the order of the next additions matters
    all.push_back(all.back().clone());
    all.back()[0] = special[(i + 1) % special.numel()];
  }
  const auto table = torch::stack(all, 1).repeat({1, 7}).contiguous();
  Tensors rows;
  for (int rank = 0; rank < ranks; ++rank) rows.push_back(table[rank].clone());
  return rows;
}

Tensor special_floats(c10::ScalarType dtype) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double greatest = dtype == at::kHalf       ? 65504
                          : dtype == at::kBFloat16 ? 0x1.FEp127
                          : dtype == at::kFloat    ? std::numeric_limits<float>::max()
                                                   : std::numeric_limits<double>::max();
  const double least = dtype == at::kHalf       ? 0x1p-24
                       : dtype == at::kBFloat16 ? 0x1p-133
                       : dtype == at::kFloat    ? std::numeric_limits<float>::denorm_min()
                                                : std::numeric_limits<double>::denorm_min();
  return torch::tensor({std::nan(""), kInf, -kInf, -0.0, 0.0, greatest, -greatest, least, -least, -3.0},
                       at::kDouble)
      .to(dtype);
}

Tensor special_integers(c10::ScalarType dtype) {
  const auto info = [&]() -> std::pair<std::int64_t, std::int64_t> {
    switch (dtype) {
      case at::kByte:
        return {0, 255};
      case at::kChar:
        return {-128, 127};
      case at::kInt:
        return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
      default:
        return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
    }
  }();
  return torch::tensor({info.first, info.second, std::int64_t{0}, std::int64_t{100}}, at::kLong).to(dtype);
}

Tensor combined(const Tensor& a, const Tensor& b, ReduceOp op) {
  switch (op) {
    case PRODUCT:
      return a.mul(b);
    case MIN:
      return torch::minimum(a, b);
    case MAX:
      return torch::maximum(a, b);
    case BAND:
      return torch::bitwise_and(a, b);
    case BOR:
      return torch::bitwise_or(a, b);
    case BXOR:
      return torch::bitwise_xor(a, b);
    default:
      return a.add(b);
  }
}

// PyTorch's own operators on the rows of all ranks.
Tensor reference(const Tensors& rows, ReduceOp op, bool rounds_each) {
  const auto dtype = rows[0].scalar_type();
  if (rows[0].is_complex()) {  // PyTorch's addition multiplies by a complex 1, which spreads NaN
    Tensors pairs;
    for (const auto& row : rows) pairs.push_back(at::view_as_real(row));
    return at::view_as_complex(reference(pairs, op, rounds_each));
  }
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto wide = is_half && !rounds_each ? at::kFloat : dtype;
  auto result = rows[0].to(wide);
  for (std::size_t rank = 1; rank < rows.size(); ++rank) result = combined(result, rows[rank].to(wide), op);
  if (op == AVG) result = result.div(static_cast<double>(rows.size()));
  return result.to(dtype);
}

void expect_same(const Tensor& actual, const Tensor& expected, ReduceOp op, const char* call) {
  if (expected.is_complex())
    return expect_same(at::view_as_real(actual), at::view_as_real(expected), op, call);
  auto same = actual == expected;
  if (expected.is_floating_point()) {
    // Which of two equal zeros MIN and MAX take is not defined.
    if (op != MIN && op != MAX) same = same & (actual.signbit() == expected.signbit());
    same = same | (actual.isnan() & expected.isnan());
  }
  if (same.all().item<bool>()) return;
  const auto first = same.flatten().logical_not().nonzero()[0].item<std::int64_t>();
  ADD_FAILURE() << name_of(op) << " of " << expected.dtype() << " by " << call << ": element " << first
                << " is " << actual.flatten()[first].item().toDouble() << ", not "
                << expected.flatten()[first].item().toDouble();
}

void check_calls(const ProcessGroup& group, const Tensors& rows, ReduceOp op) {
  const auto expected = reference(rows, op, rounds_each_addition(group));
  const auto own = rows[static_cast<std::size_t>(group.rank())];
  auto x = own.clone();
  group.all_reduce(x, op);
  expect_same(x, expected, op, "all_reduce");
  x = own.clone();
  group.reduce(x, group.size() - 1, op);
  if (group.rank() == group.size() - 1) expect_same(x, expected, op, "reduce");
  x = torch::empty_like(own);
  group.reduce_scatter(x, Tensors(static_cast<std::size_t>(group.size()), own), op);
  expect_same(x, expected, op, "reduce_scatter");
  const auto work = group.reduce_scatter_tensor_async(x.zero_(), own.repeat({group.size()}), op);
  Work(work).wait();
  expect_same(x, expected, op, "reduce_scatter_tensor");
  x = own.narrow(0, 0, 1).clone();
  group.all_reduce(x, op);
  expect_same(x, expected.narrow(0, 0, 1), op, "all_reduce of one element");
}

const Scenario special_values("special values", [] {
  const auto context = init({.backend = backend_under_test()});
  const auto& group = context.group();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const auto op : {SUM, AVG, PRODUCT, MIN, MAX})
      check_calls(group, columns(special_floats(dtype), group.size()), op);
  for (const auto dtype : {at::kByte, at::kChar, at::kInt, at::kLong})
    for (const auto op : {SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR})
      check_calls(group, columns(special_integers(dtype), group.size()), op);
  for (const auto op : {SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR})
    check_calls(group, columns(torch::tensor({true, false}), group.size()), op);
  const auto parts = special_floats(at::kFloat);
  for (const auto op : {SUM, AVG})
    check_calls(group, columns(torch::complex(parts, parts.flip(0)), group.size()), op);
});

const Scenario undefined_reductions("undefined reductions", [] {
  const auto context = init({.backend = backend_under_test()});
  const auto refusal = [&](c10::ScalarType dtype, ReduceOp op) {
    const auto x = torch::ones({3}, dtype);
    const auto text = error_of<ArgumentError>([&] { context.group().all_reduce(x, op); });
    EXPECT_TRUE(x.equal(torch::ones({3}, dtype)));
    return text;
  };
  for (const auto dtype : {at::kByte, at::kChar, at::kInt, at::kLong, at::kBool})
    EXPECT_THAT(refusal(dtype, AVG),
                AllOf(HasSubstr("AVG needs floating point"), HasSubstr("use SUM and divide")));
  for (const auto dtype : {at::kFloat, at::kHalf, at::kComplexFloat})
    EXPECT_THAT(refusal(dtype, BAND), HasSubstr("BAND needs integers or bool"));
  for (const auto op : {PRODUCT, MIN, MAX})
    EXPECT_THAT(refusal(at::kComplexFloat, op), HasSubstr("of complex numbers is not defined"));
  context.group().barrier();
});

class SpecialValues : public EveryBackend {};
TEST_P(SpecialValues, AreReducedAlike) { run(special_values); }
TEST_P(SpecialValues, UndefinedReductionsAreErrors) { run(undefined_reductions); }
INSTANTIATE_TEST_SUITE_P(Ranks, SpecialValues, backends_and_ranks({2, 3}), name_of_case);
INSTANTIATE_TEST_SUITE_P(TwoHosts, SpecialValues, two_hosts(1, 1), name_of_case);
INSTANTIATE_TEST_SUITE_P(ThreeRanks, SpecialValues, two_hosts(2, 1), name_of_case);

}  // namespace
}  // namespace lockstep::testing::special_values_test
