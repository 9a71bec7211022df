// SPDX-License-Identifier: BSD-3-Clause
// Collectives with gradients beside torch.distributed.nn.functional; messages with gradients; errors.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/nn/functional.h>
#include <lockstep/rendezvous/init.h>

#include "parity/both_sides.h"
#include "parity/tensor_record.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace F = nn::functional;
using at::Tensor;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

constexpr int kRoot = 1;
constexpr std::array kOps{"all_reduce",
                          "all_reduce_max",
                          "all_reduce_strided",
                          "all_gather",
                          "all_gather_one",
                          "reduce_scatter",
                          "all_to_all",
                          "all_to_all_single",
                          "all_to_all_uneven",
                          "broadcast",
                          "reduce",
                          "gather",
                          "scatter",
                          "chain"};

Tensors empties(const Tensors& tensors) {
  Tensors made;
  for (const auto& tensor : tensors) made.push_back(torch::empty_like(tensor));
  return made;
}

// call() of nn_functional.py.
Tensors call(const std::string& op, const Tensor& x, const Context& context) {
  const auto rank = context.rank(), size = context.world_size();
  const auto parts = x.chunk(size);
  if (op == "all_reduce") return {F::all_reduce(x)};
  if (op == "all_reduce_max") return {F::all_reduce(x, ReduceOp::MAX)};
  if (op == "all_reduce_strided") return {F::all_reduce(x.t())};
  if (op == "all_gather") return F::all_gather(x);
  if (op == "all_gather_one") return {F::all_gather(x.t())[kRoot]};
  if (op == "reduce_scatter") return {F::reduce_scatter(torch::empty_like(parts[0]), parts)};
  if (op == "all_to_all") return F::all_to_all(empties(parts), parts);
  if (op == "all_to_all_single") return {F::all_to_all_single(torch::empty_like(x), x)};
  if (op == "all_to_all_uneven") {
    std::vector<std::int64_t> counts;
    for (int i = 0; i < size; ++i) counts.push_back(rank + i);
    const auto rows = size * rank + size * (size - 1) / 2;
    return {F::all_to_all_single(torch::empty({rows, x.size(1)}), x.slice(0, 0, rows), counts, counts)};
  }
  if (op == "broadcast") return {F::broadcast(x, kRoot)};
  if (op == "reduce") return {F::reduce(x, kRoot).masked_fill(torch::tensor(rank != kRoot), 0)};
  if (op == "gather") return F::gather(x, kRoot);
  if (op == "scatter") return {F::scatter(parts, kRoot)};
  if (op != "chain") throw std::runtime_error("no case " + op);
  const auto hidden = torch::cat(F::all_gather(x)) * x.repeat({size, 1});
  return {F::all_reduce(hidden * hidden), F::broadcast(hidden, 0)};
}

std::vector<Record> run_case(const std::string& op, const Context& context) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(context.rank()));
  const auto x = torch::randn({6 * context.world_size(), 5}).requires_grad_();
  const auto outputs = call(op, x, context);
  auto loss = torch::zeros({});
  for (const auto& output : outputs) loss = loss + (output * output * torch::randn(output.sizes())).sum();
  const auto gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  (gradient * gradient * gradient).sum().backward();
  std::vector<Record> records{record_of("gradient", gradient), record_of("second", x.grad())};
  for (const auto& output : outputs) records.push_back(record_of("output", output));
  return records;
}

const Scenario all_ops("nn functional", [] {
  as_parity_ranks([](const Context& context) {
    for (const std::string op : kOps)
      write_records(record_file(record_folder(), op, context.rank()), run_case(op, context));
  });
});

class NnFunctionalParity : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(NnFunctionalParity, OutputsAndTwoGradientsToTheLastBit) {
  const auto& [backend, world_size] = GetParam();
  std::vector<std::string> cases;
  for (const auto* op : kOps) cases.push_back(fmt::format("name={}", op));
  const BothSides sides("parity/nn_functional.py", all_ops, cases, backend, world_size);
  ASSERT_FALSE(HasFailure());
  for (const std::string op : kOps) {
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {} of {}", op, rank, world_size));
      const auto python = read_records(sides.python_file(op, rank));
      const auto ours = read_records(sides.our_file(op, rank));
      ASSERT_EQ(python.size(), ours.size());
      for (std::size_t i = 0; i < python.size(); ++i) EXPECT_EQ(first_difference(python[i], ours[i]), "");
    }
  }
}

// shm adds in the order of the ranks, gloo in another: at two ranks the same bits.
INSTANTIATE_TEST_SUITE_P(WorldSize, NnFunctionalParity,
                         ::testing::Values(std::pair{"gloo", 2}, std::pair{"gloo", 3}, std::pair{"shm", 2}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

// A net of two layers, one on each rank, and beside it the same in one process.
const Scenario messages("nn functional messages", [] {
  const auto context = init({.backend = "shm"});
  torch::manual_seed(7);
  const auto x = torch::randn({4, 3}), w0 = torch::randn({3, 2}), w1 = torch::randn({2, 2});
  const auto first = w0.clone().requires_grad_(), second = w1.clone().requires_grad_();
  x.mm(first).tanh().mm(second).pow(2).sum().backward();
  const auto weight = (context.rank() == 0 ? w0 : w1).clone().requires_grad_();
  if (context.rank() == 0) {
    const auto sent = F::send(x.mm(weight).tanh(), 1, {}, 3);
    EXPECT_EQ(sent.item<float>(), 0);
    sent.backward();
    EXPECT_TRUE(weight.grad().equal(first.grad()));
  } else {
    const auto hidden = F::recv(torch::empty({4, 2}), 0, {}, 3);
    EXPECT_TRUE(hidden.requires_grad());
    hidden.mm(weight).pow(2).sum().backward();
    EXPECT_TRUE(weight.grad().equal(second.grad()));
  }
  {
    const torch::NoGradGuard no_grad;
    if (context.rank() == 0) {
      EXPECT_FALSE(F::send(weight, 1).requires_grad());
    } else {
      EXPECT_FALSE(F::recv(torch::empty({3, 2}), 0).requires_grad());
    }
  }
  const auto loss = context.rank() == 0 ? F::send(weight.sum(), 1) : F::recv(torch::empty({}), 0);
  EXPECT_THAT(error_of([&] { loss.backward({}, true, true); }), HasSubstr("create_graph is not supported"));
});
const Scenario outputs_in_use("nn functional outputs in use", [] {
  const auto context = init({.backend = "shm"});
  const auto weight = torch::ones({2}).requires_grad_();
  const auto part = torch::ones({1}), whole = torch::ones({2});
  const auto peer = 1 - context.rank();
  const auto expect_noticed = [&](const Tensor& buffer, const std::function<void()>& overwrite) {
    const auto product = (weight.slice(0, 0, buffer.numel()) * buffer).sum();
    overwrite();
    EXPECT_THAT(error_of<c10::Error>([&] { product.backward(); }),
                HasSubstr("modified by an inplace operation"));
  };
  expect_noticed(part, [&] { F::reduce_scatter(part, {part.clone(), part.clone()}); });
  expect_noticed(part, [&] { F::all_to_all({part, part.clone()}, {part.clone(), part.clone()}); });
  expect_noticed(whole, [&] { F::all_to_all_single(whole, whole.clone()); });
  expect_noticed(part, [&] {
    if (context.is_main_process()) F::send(part.clone(), peer);
    F::recv(part, peer);
    if (!context.is_main_process()) F::send(part.clone(), peer);
  });
  // A complex message has a gradient, too.
  const auto number = torch::full({1}, 2, torch::kComplexFloat);
  if (context.is_main_process()) {
    auto sent = number.clone().requires_grad_();
    torch::real(F::send(sent * 3, peer)).backward();
    EXPECT_TRUE(sent.grad().equal(number * 3));
  } else {
    torch::real(F::recv(number.clone(), peer) * number).sum().backward();
  }
});
TEST(NnFunctional, AutogradNoticesOutputsThatItSaved) { expect_all_passed(run_ranks(outputs_in_use)); }

TEST(NnFunctional, MessagesCarryGradientsBack) { expect_all_passed(run_ranks(messages)); }

TEST(NnFunctional, ErrorsNameTheCall) {
  EXPECT_THAT(error_of([] { F::all_gather(torch::ones({2})); }), HasSubstr("nn::functional::all_gather"));
  const auto context = init({.backend = "fake", .world_size = 2, .rank = 0});
  EXPECT_THAT(error_of<ArgumentError>([] { F::scatter({torch::ones({2})}); }),
              HasSubstr("rank 0 passes 1 tensors; every rank passes one for each of the 2 ranks"));
  EXPECT_THAT(error_of<ArgumentError>([] { F::broadcast(torch::ones({2}), 2); }),
              HasSubstr("broadcast at nn_functional_test.cpp:"));
}

}  // namespace
}  // namespace lockstep::testing
