// SPDX-License-Identifier: BSD-3-Clause
// Every collective over every backend, at 1 to 4 ranks, several sizes and element types, checked against what
// it means; also through the copies that tensors of a shared GPU make (host-staged), here from memory to
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "backends/factories.h"
#include "comm/group_state.h"
#include "multiprocess/backends.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kSizes[] = {0, 1, 7, 1000, 100'000};
constexpr c10::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                      at::kInt,   at::kLong,   at::kByte, at::kChar};

// Small whole numbers, different on each rank and in each place, exact in every type.
at::Tensor values(int rank, std::int64_t size, c10::ScalarType type) {
  return (torch::arange(size, at::kLong).remainder(5) + rank + 1).to(type);
}

Tensors values_of_all(int ranks, std::int64_t size, c10::ScalarType type) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values(rank, size, type));
  return all;
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(torch::equal(actual, expected))
      << what << " of " << expected.numel() << ' ' << expected.dtype();
}

// A rank's context, and the group that its test is about.
class Member {
 public:
  explicit Member(const std::string& backend)
      : context_(init({.backend = host_backend(backend)})), group_(context_.group()) {
    if (!backend.starts_with(kStaged)) return;
    auto& state = comm::state_of(context_.group());
    auto staged =
        backends::stage_through_host({.backend = state.backend(), .traits = state.info().traits}, at::kCPU);
    group_ = ProcessGroup(staged.backend,
                          {.name = "staged", .traits = staged.traits, .node_group = state.node_group()});
  }
  int rank() const { return context_.rank(); }
  const ProcessGroup& group() const { return group_; }

 private:
  static constexpr std::string_view kStaged = "staged_";
  static std::string host_backend(const std::string& backend) {
    return backend.starts_with(kStaged) ? backend.substr(kStaged.size()) : backend;
  }

  Context context_;
  ProcessGroup group_;
};

Member start() { return Member(testing::backend_under_test()); }

template <typename Body>
void for_sizes_and_types(const Member& member, Body body) {
  for (const auto size : kSizes) {
    for (const auto type : kTypes) body(member.group(), size, type);
  }
}

void check_reductions(const ProcessGroup& group, std::int64_t size, c10::ScalarType type) {
  const auto stack =
      torch::stack(values_of_all(group.size(), size, type).empty() ? Tensors{values(0, size, type)}
                                                                   : values_of_all(group.size(), size, type));
  const auto reduced = [&](ReduceOp op) {
    auto x = values(group.rank(), size, type);
    group.all_reduce(x, op);
    return x;
  };
  expect_equal(reduced(ReduceOp::SUM), stack.sum(0).to(type), "sum");
  expect_equal(reduced(ReduceOp::PRODUCT), stack.prod(0).to(type), "product");
  expect_equal(reduced(ReduceOp::MIN), stack.amin(0), "min");
  expect_equal(reduced(ReduceOp::MAX), stack.amax(0), "max");
  if (c10::isFloatingType(type)) {
    expect_equal(reduced(ReduceOp::AVG), stack.sum(0).to(type).div(group.size()), "average");
  }
  const int root = group.size() - 1;
  auto x = values(group.rank(), size, type);
  group.reduce(x, root);
  if (group.rank() == root) expect_equal(x, stack.sum(0).to(type), "reduce");
}

void check_copies(const ProcessGroup& group, std::int64_t size, c10::ScalarType type) {
  const int root = group.size() / 2;
  const auto all = values_of_all(group.size(), size, type);
  const auto own = values(group.rank(), size, type);

  auto x = own.clone();
  group.broadcast(x, root);
  expect_equal(x, all[root], "broadcast");

  Tensors parts;
  for (int i = 0; i < group.size(); ++i) parts.push_back(torch::zeros({size}, type));
  group.all_gather(parts, own);
  for (int i = 0; i < group.size(); ++i) expect_equal(parts[i], all[i], "all_gather");

  auto whole = torch::zeros({group.size() * size}, type);
  group.all_gather_into_tensor(whole, own);
  expect_equal(whole, torch::cat(all), "all_gather_into_tensor");

  const bool is_root = group.rank() == root;
  for (auto& part : parts) part.zero_();
  group.gather(own, is_root ? parts : Tensors{}, root);
  for (int i = 0; is_root && i < group.size(); ++i) expect_equal(parts[i], all[i], "gather");

  auto piece = torch::zeros({size}, type);
  group.scatter(piece, is_root ? all : Tensors{}, root);
  expect_equal(piece, own, "scatter");
}

void check_exchanges(const ProcessGroup& group, std::int64_t size, c10::ScalarType type) {
  const int n = group.size();
  Tensors to_each;
  for (int i = 0; i < n; ++i) to_each.push_back(values(group.rank() + 10 * i, size, type));
  Tensors expected;
  for (int i = 0; i < n; ++i) expected.push_back(values(i + 10 * group.rank(), size, type));

  Tensors received;
  for (int i = 0; i < n; ++i) received.push_back(torch::zeros({size}, type));
  group.all_to_all(received, to_each);
  for (int i = 0; i < n; ++i) expect_equal(received[i], expected[i], "all_to_all");

  auto output = torch::zeros({n * size}, type);
  group.all_to_all_single(output, torch::cat(to_each));
  expect_equal(output, torch::cat(expected), "all_to_all_single");

  const auto sum = torch::stack(expected).sum(0).to(type);
  auto part = torch::zeros({size}, type);
  group.reduce_scatter(part, to_each);
  expect_equal(part, sum, "reduce_scatter");
  part.zero_();
  group.reduce_scatter_tensor(part, torch::cat(to_each));
  expect_equal(part, sum, "reduce_scatter_tensor");
}

const testing::Scenario reductions("reductions", [] { for_sizes_and_types(start(), check_reductions); });
const testing::Scenario copies("copies", [] { for_sizes_and_types(start(), check_copies); });
const testing::Scenario exchanges("exchanges", [] { for_sizes_and_types(start(), check_exchanges); });

auto ways_and_ranks(std::vector<int> ranks) {
  return ::testing::Combine(::testing::Values("gloo", "shm", "staged_gloo", "staged_shm"),
                            ::testing::ValuesIn(ranks));
}

class Collectives : public testing::EveryBackend {};

TEST_P(Collectives, Reductions) { run(reductions); }
TEST_P(Collectives, Copies) { run(copies); }
TEST_P(Collectives, Exchanges) { run(exchanges); }
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ways_and_ranks({1, 2, 3, 4}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(EvenHosts, Collectives, testing::two_hosts(2, 2), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(UnevenHosts, Collectives, testing::two_hosts(3, 1), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(ThreeHosts, Collectives, ::testing::Values(std::tuple("hierarchical_1_1_1", 3)),
                         testing::name_of_case);

class CollectiveKinds : public testing::EveryBackend {};
class CollectiveKindsOfThree : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveKinds, ways_and_ranks({2}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveKindsOfThree, ways_and_ranks({3}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, CollectiveKinds, testing::two_hosts(1, 1), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, CollectiveKindsOfThree, testing::two_hosts(1, 2), testing::name_of_case);

const testing::Scenario bitwise("bitwise", [] {
  const auto context = start();
  const auto reduced = [&](int value, ReduceOp op) {
    auto x = torch::full({5}, value, at::kInt);
    context.group().all_reduce(x, op);
    return x[0].item<int>();
  };
  const int own = context.rank() == 0 ? 0b1100 : 0b1010;
  EXPECT_EQ(reduced(own, ReduceOp::BAND), 0b1000);
  EXPECT_EQ(reduced(own, ReduceOp::BOR), 0b1110);
  EXPECT_EQ(reduced(own, ReduceOp::BXOR), 0b0110);
  auto flags = torch::tensor({context.rank() == 0, true, false});
  context.group().all_reduce(flags, ReduceOp::MAX);
  EXPECT_TRUE(torch::equal(flags, torch::tensor({true, true, false})));
  flags = torch::tensor({context.rank() == 0, true, false});
  context.group().all_reduce(flags);
  EXPECT_TRUE(torch::equal(flags.view(at::kByte), torch::tensor({1, 1, 0}).to(at::kByte)));
});
TEST_P(CollectiveKinds, Bitwise) { run(bitwise); }

const testing::Scenario complex_numbers("complex numbers", [] {
  const auto context = start();
  const auto& group = context.group();
  const auto own = torch::complex(torch::ones({4}) * (group.rank() + 1), torch::ones({4}) * 2);
  auto x = own.clone();
  group.all_reduce(x);
  EXPECT_TRUE(torch::equal(x, torch::complex(torch::full({4}, 3.0F), torch::full({4}, 4.0F))));
  x = own.clone();
  group.all_reduce(x, ReduceOp::AVG);
  EXPECT_TRUE(torch::equal(x, torch::complex(torch::full({4}, 1.5F), torch::full({4}, 2.0F))));
  x = own.clone();
  group.broadcast(x, 1);
  EXPECT_EQ(torch::real(x)[0].item<float>(), 2);
  Tensors parts{torch::zeros_like(own), torch::zeros_like(own)};
  group.all_gather(parts, own);
  EXPECT_TRUE(torch::equal(parts[group.rank()], own));
});
TEST_P(CollectiveKinds, ComplexNumbers) { run(complex_numbers); }

const testing::Scenario layouts("layouts", [] {
  const auto context = start();
  auto x = torch::arange(48, at::kFloat).view({2, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  context.group().all_reduce(x);
  EXPECT_TRUE(torch::equal(x, 2 * torch::arange(48, at::kFloat).view({2, 2, 3, 4})));
  EXPECT_TRUE(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  auto transposed = torch::full({3, 2}, static_cast<float>(context.rank())).t();
  context.group().broadcast(transposed, 1);
  EXPECT_TRUE(torch::equal(transposed, torch::ones({2, 3})));
  auto parameter = torch::ones({3}, torch::requires_grad());
  context.group().all_reduce(parameter);
  EXPECT_EQ(parameter.sum().item<float>(), 6);
});
TEST_P(CollectiveKinds, Layouts) { run(layouts); }

// Written by threads that are not in inference mode.
const testing::Scenario inference("inference mode", [] {
  const auto context = start();
  const auto& group = context.group();
  const c10::InferenceMode guard;
  const auto x = torch::full({4}, group.rank() + 1.0F);
  group.all_reduce(x, ReduceOp::AVG);
  EXPECT_TRUE(torch::equal(x, torch::full({4}, 1.5F)));
  const Tensors all{torch::zeros({4}), torch::zeros({4})};
  group.all_gather(all, torch::full({4}, group.rank() + 1.0F));
  EXPECT_TRUE(torch::equal(all[1], torch::full({4}, 2.0F)));
  EXPECT_EQ(group.all_gather_object(std::to_string(group.rank())), (std::vector<std::string>{"0", "1"}));
});
TEST_P(CollectiveKinds, InferenceMode) { run(inference); }

// Rank r sends r + i elements to rank i.
const testing::Scenario uneven_lists("uneven lists", [] {
  const auto context = start();
  const auto& group = context.group();
  Tensors sent, received;
  for (int i = 0; i < group.size(); ++i) {
    sent.push_back(torch::full({group.rank() + i}, 10.0F * group.rank() + i));
    received.push_back(torch::zeros({group.rank() + i}));
  }
  group.all_to_all(received, sent);
  for (int i = 0; i < group.size(); ++i)
    EXPECT_TRUE(torch::equal(received[i], torch::full({group.rank() + i}, 10.0F * i + group.rank())));
});
TEST_P(CollectiveKindsOfThree, UnevenLists) { run(uneven_lists); }

const testing::Scenario uneven("uneven exchange", [] {
  const auto context = start();
  const auto& group = context.group();
  // Rank r sends i + 1 rows of two to rank i, all filled with 10 * r + i.
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received(static_cast<std::size_t>(group.size()), group.rank() + 1);
  Tensors rows;
  Tensors expected;
  for (int i = 0; i < group.size(); ++i) {
    sent.push_back(i + 1);
    rows.push_back(torch::full({i + 1, 2}, 10.0F * group.rank() + i));
    expected.push_back(torch::full({group.rank() + 1, 2}, 10.0F * i + group.rank()));
  }
  auto output = torch::zeros({group.size() * (group.rank() + 1), 2});
  group.all_to_all_single(output, torch::cat(rows), received, sent);
  EXPECT_TRUE(torch::equal(output, torch::cat(expected)));
});
TEST_P(CollectiveKindsOfThree, UnevenExchange) { run(uneven); }

const testing::Scenario objects("objects", [] {
  const auto context = start();
  const auto& group = context.group();
  const std::vector<std::string> all{"", std::string("\0bytes\xff", 7), std::string(100'000, 'x')};
  const auto& own = all[static_cast<std::size_t>(group.rank())];
  EXPECT_EQ(group.all_gather_object(own), all);
  EXPECT_EQ(group.broadcast_object(own, 1), all[1]);
  EXPECT_EQ(group.broadcast_object(own, 0), "");
  EXPECT_EQ(group.gather_object(own, 2), group.rank() == 2 ? all : std::vector<std::string>{});
  EXPECT_EQ(group.scatter_object(group.rank() == 1 ? all : std::vector<std::string>{}, 1), own);
  EXPECT_EQ(group.all_gather_object(""), (std::vector<std::string>{"", "", ""}));
});
TEST_P(CollectiveKindsOfThree, Objects) { run(objects); }

}  // namespace
}  // namespace lockstep
