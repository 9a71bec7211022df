// SPDX-License-Identifier: BSD-3-Clause
// Reductions over shared memory, to the bit: the ranks' numbers combined in the order of the ranks, on every
// rank and in every run, whatever the timing, the size and the memory; for every element type that there is.
#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

// Small; of one chunk and of several.
constexpr std::int64_t kSizes[] = {7, 1000, 20'011, 300'007};
constexpr int kRepetitions = 4;

at::Tensor random_numbers(int rank, std::int64_t size, c10::ScalarType type) {
  torch::manual_seed(static_cast<std::uint64_t>(rank * 7919 + size));
  if (c10::isComplexType(type)) return torch::randn({size}, type);
  if (type == at::kBool) return torch::randint(0, 2, {size}, at::kLong).to(type);
  if (c10::isIntegralType(type, true)) return torch::randint(-1000, 1000, {size}, at::kLong).to(type);
  return (torch::randn({size}, at::kDouble) * torch::exp(5 * torch::randn({size}, at::kDouble))).to(type);
}

Tensors numbers_of_all(int ranks, std::int64_t size, c10::ScalarType type) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(random_numbers(rank, size, type));
  return all;
}

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::PRODUCT:
      return a.mul(b);
    case ReduceOp::MIN:
      return torch::minimum(a, b);
    case ReduceOp::MAX:
      return torch::maximum(a, b);
    case ReduceOp::BAND:
      return torch::bitwise_and(a, b);
    case ReduceOp::BOR:
      return torch::bitwise_or(a, b);
    case ReduceOp::BXOR:
      return torch::bitwise_xor(a, b);
    default:
      return a.add(b);
  }
}

// One after the other, in the type that is computed with, rounded once at the end.
at::Tensor in_order(const Tensors& all, ReduceOp op) {
  const auto type = all.front().scalar_type();
  const bool is_short = type == at::kBFloat16 || type == at::kHalf;
  const auto wide = is_short ? at::kFloat : type;
  auto result = all.front().to(wide);
  for (std::size_t i = 1; i < all.size(); ++i) result = combined(result, all[i].to(wide), op);
  if (op == ReduceOp::AVG && result.is_complex()) {
    result = torch::view_as_complex(torch::view_as_real(result).div(static_cast<double>(all.size())));
  } else if (op == ReduceOp::AVG) {
    result = result.div(static_cast<double>(all.size()));
  }
  return result.to(type);
}

// Keeps this rank busy for a while of its own, so that another order of arrival comes about each time.
void dawdle(std::mt19937& random) {
  const auto turns = random() % 4 == 0 ? random() % 2'000'000 : random() % 20'000;
  for (unsigned i = 0; i < turns; ++i) asm volatile("");
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(torch::equal(actual, expected))
      << what << " of " << expected.numel() << ' ' << expected.dtype() << " differs in "
      << actual.ne(expected).sum().item<std::int64_t>() << " places";
}

struct Case {
  const ProcessGroup& group;
  std::int64_t size;
  c10::ScalarType type;
  ReduceOp op = ReduceOp::SUM;
  std::mt19937& random;

  Tensors all() const { return numbers_of_all(group.size(), size, type); }
};

void check_whole_tensors(const Case& now, const Tensors& all, const at::Tensor& expected) {
  const auto& group = now.group;
  const auto own = all[static_cast<std::size_t>(group.rank())];
  dawdle(now.random);
  auto x = own.clone();
  group.all_reduce(x, now.op);
  expect_same(x, expected, "all_reduce");

  if (!own.is_complex()) {
    auto shared = group.backend()->allocateTensor(now.size, own.options());
    shared.copy_(own);
    dawdle(now.random);
    group.all_reduce(shared, now.op);
    expect_same(shared, expected, "all_reduce in place");
  }
  const int root = group.size() - 1;
  x = own.clone();
  dawdle(now.random);
  group.reduce(x, root, now.op);
  if (group.rank() == root) expect_same(x, expected, "reduce");
}

// Rank r's part for rank i: rank r's numbers turned by i places.
void check_parts(const Case& now, const Tensors& all, const at::Tensor& expected) {
  const auto& group = now.group;
  Tensors parts;
  for (int i = 0; i < group.size(); ++i)
    parts.push_back(all[static_cast<std::size_t>(group.rank())].roll(i).contiguous());
  auto part = torch::zeros_like(parts.front());
  dawdle(now.random);
  group.reduce_scatter(part, parts, now.op);
  expect_same(part, expected.roll(group.rank()), "reduce_scatter");
  part.zero_();
  dawdle(now.random);
  group.reduce_scatter_tensor(part, torch::cat(parts), now.op);
  expect_same(part, expected.roll(group.rank()), "reduce_scatter_tensor");

  if (part.is_complex()) return;
  // From memory that all ranks see; the result replaces this rank's part of it, and is gathered there.
  const auto shared = group.backend()->allocateTensor(now.size * group.size(), part.options());
  shared.copy_(torch::cat(parts));
  const auto own = shared.narrow(0, now.size * group.rank(), now.size);
  dawdle(now.random);
  group.reduce_scatter_tensor(own, shared, now.op);
  expect_same(own, expected.roll(group.rank()), "reduce_scatter_tensor in place");
  dawdle(now.random);
  group.all_gather_into_tensor(shared, own);
  for (int i = 0; i < group.size(); ++i)
    expect_same(shared.narrow(0, now.size * i, now.size), expected.roll(i),
                "all_gather_into_tensor in place");
}

void check(const Case& now) {
  const auto all = now.all();
  const auto expected = in_order(all, now.op);
  check_whole_tensors(now, all, expected);
  check_parts(now, all, expected);
}

const testing::Scenario order_matters("same results: order", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(50)});
  std::mt19937 random(static_cast<unsigned>(context.rank()) + 1);
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto size : kSizes) {
      auto all = numbers_of_all(context.world_size(), size, type);
      const auto forth = in_order(all, ReduceOp::SUM);
      std::ranges::reverse(all);
      if (size > 1000 && type != at::kBFloat16) {
        EXPECT_FALSE(torch::equal(forth, in_order(all, ReduceOp::SUM))) << "the order does not matter";
      }
      for (int i = 0; i < kRepetitions; ++i) {
        check({.group = context.group(), .size = size, .type = type, .random = random});
      }
      check({.group = context.group(), .size = size, .type = type, .op = ReduceOp::AVG, .random = random});
    }
  }
});
TEST(SameResults, ToTheBitForThree) {
  testing::expect_all_passed(testing::run_ranks(order_matters, {.world_size = 3}));
}
TEST(SameResults, ToTheBitForFour) {
  testing::expect_all_passed(testing::run_ranks(order_matters, {.world_size = 4}));
}

const testing::Scenario other_types("same results: types", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(50)});
  std::mt19937 random(static_cast<unsigned>(context.rank()) + 1);
  const auto check_all = [&](const std::vector<c10::ScalarType>& types, const std::vector<ReduceOp>& ops) {
    for (const auto type : types) {
      for (const auto op : ops) {
        for (const std::int64_t size : {5, 20'011}) {
          check({.group = context.group(), .size = size, .type = type, .op = op, .random = random});
        }
      }
    }
  };
  using enum ReduceOp;
  check_all({at::kChar, at::kByte, at::kShort, at::kInt, at::kLong, at::kBool},
            {SUM, MIN, MAX, PRODUCT, BAND, BOR, BXOR});
  check_all({at::kComplexFloat, at::kComplexDouble}, {SUM, AVG});
});
TEST(SameResults, IntegersBooleansAndComplexNumbers) {
  testing::expect_all_passed(testing::run_ranks(other_types, {.world_size = 3}));
}

const testing::Scenario uneven_lists("same results: uneven lists", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(50)});
  const auto& group = context.group();
  // Rank 0 has no data; then small tensors, then tensors that are sent in chunks.
  for (const std::int64_t unit : {3, 30'000}) {
    const auto filled = [&](int from, int to) {
      return torch::full({from * unit + to}, 10.0F * static_cast<float>(from) + static_cast<float>(to));
    };
    Tensors gathered;
    Tensors received;
    Tensors sent;
    for (int rank = 0; rank < group.size(); ++rank) {
      gathered.push_back(torch::zeros({rank * unit}));
      received.push_back(torch::zeros_like(filled(rank, group.rank())));
      sent.push_back(filled(group.rank(), rank));
    }
    group.all_gather(gathered, filled(group.rank(), 0));
    group.all_to_all(received, sent);
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto from = static_cast<std::size_t>(rank);
      expect_same(gathered[from], filled(rank, 0), "all_gather");
      expect_same(received[from], filled(rank, group.rank()), "all_to_all");
    }
  }
});
TEST(SameResults, ListsOfDifferentLengths) {
  testing::expect_all_passed(testing::run_ranks(uneven_lists, {.world_size = 3}));
}

// DDP asks the group for the memory of its buckets by itself.
bool lies_in_shared_memory(const void* place) {
  std::ifstream maps("/proc/self/maps");
  const auto address = reinterpret_cast<std::uintptr_t>(place);
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end;
    if (address >= begin && address < end) return line.find("memfd:lockstep") != std::string::npos;
  }
  return false;
}

const testing::Scenario buckets("same results: buckets", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(50)});
  torch::nn::Linear net(300, 300);
  DistributedDataParallel ddp(net);
  ddp->forward(torch::ones({2, 300})).sum().backward();
  EXPECT_FALSE(lies_in_shared_memory(net->weight.const_data_ptr()));
  for (const auto& parameter : net->parameters()) {
    EXPECT_TRUE(lies_in_shared_memory(parameter.grad().const_data_ptr()));
  }
});
TEST(Buckets, AreInSharedMemory) { testing::expect_all_passed(testing::run_ranks(buckets)); }

}  // namespace
}  // namespace lockstep
