// SPDX-License-Identifier: BSD-3-Clause
// Ranks that make different calls throw on all ranks before any data is mixed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Rank 1 makes a different call; the text has to name both calls.
void expect_desync(const std::function<void(const ProcessGroup&)>& usual,
                   const std::function<void(const ProcessGroup&)>& other, const std::string& first,
                   const std::string& second) {
  const auto context = init({.backend = "shm", .timeout = 20s});
  context.barrier();
  const auto& call = context.rank() == 1 ? other : usual;
  EXPECT_THAT([&] { call(context.group()); },
              ThrowsMessage<DesyncError>(AllOf(HasSubstr("the ranks make different calls"), HasSubstr(first),
                                               HasSubstr(second), HasSubstr("disagreement_test.cpp:"))));
  // No rank hangs, and no rank continues without an error.
  EXPECT_THROW(context.group().barrier(), DesyncError);
}

void reduce_ones(const ProcessGroup& group) {
  auto x = torch::ones({12});
  group.all_reduce(x);
  FAIL() << "data was mixed: " << x;
}

const testing::Scenario other_kind("desync: kind", [] {
  expect_desync(
      reduce_ones, [](const ProcessGroup& group) { group.broadcast(torch::ones({12}), 0); },
      "rank 0: all_reduce of 12 x f32", "rank 1: broadcast of 12 x f32, root 0");
});
TEST(Disagreement, Kind) { testing::expect_all_passed(testing::run_ranks(other_kind, {.world_size = 3})); }

const testing::Scenario other_shape("desync: shape", [] {
  expect_desync(
      reduce_ones, [](const ProcessGroup& group) { group.all_reduce(torch::ones({13})); },
      "rank 0: all_reduce of 12 x f32", "rank 1: all_reduce of 13 x f32");
});
TEST(Disagreement, Size) { testing::expect_all_passed(testing::run_ranks(other_shape, {.world_size = 3})); }

const testing::Scenario other_dtype("desync: dtype", [] {
  expect_desync(
      reduce_ones, [](const ProcessGroup& group) { group.all_reduce(torch::ones({24}, at::kHalf)); },
      "rank 0: all_reduce of 12 x f32", "rank 1: all_reduce of 24 x f16");
});
TEST(Disagreement, Type) { testing::expect_all_passed(testing::run_ranks(other_dtype)); }

const testing::Scenario other_reduction("desync: reduction", [] {
  expect_desync(
      reduce_ones, [](const ProcessGroup& group) { group.all_reduce(torch::ones({12}), ReduceOp::MAX); },
      "(sum)", "(max)");
});
TEST(Disagreement, Reduction) { testing::expect_all_passed(testing::run_ranks(other_reduction)); }

const testing::Scenario other_root("desync: root", [] {
  expect_desync([](const ProcessGroup& group) { group.broadcast(torch::ones({3}), 0); },
                [](const ProcessGroup& group) { group.broadcast(torch::ones({3}), 1); }, "root 0", "root 1");
});
TEST(Disagreement, Root) { testing::expect_all_passed(testing::run_ranks(other_root)); }

const testing::Scenario large("desync: large", [] {
  expect_desync([](const ProcessGroup& group) { group.all_reduce(torch::ones({1'000'000})); },
                [](const ProcessGroup& group) { group.all_reduce(torch::ones({1'000'001})); },
                "1000000 x f32", "1000001 x f32");
});
TEST(Disagreement, LargeTensors) { testing::expect_all_passed(testing::run_ranks(large)); }

const testing::Scenario split_sizes("desync: splits", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  // Rank 0 sends two rows to rank 1, which expects three.
  auto input = torch::ones({context.rank() == 0 ? 3 : 2, 4});
  auto output = torch::ones({context.rank() == 0 ? 2 : 4, 4});
  const std::vector<std::int64_t> sent =
      context.rank() == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1, 1};
  const std::vector<std::int64_t> wanted =
      context.rank() == 0 ? std::vector<std::int64_t>{1, 1} : std::vector<std::int64_t>{3, 1};
  EXPECT_THROW(context.group().all_to_all_single(output, input, wanted, sent), DesyncError);
});
TEST(Disagreement, SplitSizes) { testing::expect_all_passed(testing::run_ranks(split_sizes)); }

const testing::Scenario message_size("desync: message", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  const auto exchange = [&] {
    if (context.rank() == 0) {
      context.group().send(torch::ones({4}), 1);
      context.barrier();
    } else {
      (void)context.group().recv(torch::ones({5}), 0);
    }
  };
  EXPECT_THAT(exchange,
              ThrowsMessage<DesyncError>(HasSubstr("a message whose size or element type differs")));
});
TEST(Disagreement, Messages) { testing::expect_all_passed(testing::run_ranks(message_size)); }

const testing::Scenario over_gloo("desync: gloo", [] {
  const auto context = init({.backend = "gloo", .timeout = 20s, .check_calls = true});
  context.barrier();
  auto x = torch::ones({12});
  context.group().all_reduce(x);
  EXPECT_EQ(x[0].item<float>(), 2);
  const auto call = [&] {
    if (context.rank() == 0) context.group().all_reduce(x);
    if (context.rank() == 1) context.group().broadcast(x, 1);
  };
  EXPECT_THAT(call, ThrowsMessage<DesyncError>(
                        AllOf(HasSubstr("rank 0: all_reduce #3 of Float[12] at disagreement_test.cpp:"),
                              HasSubstr("rank 1: broadcast #3 of Float[12] at disagreement_test.cpp:"),
                              HasSubstr("root 1"))));
  EXPECT_EQ(x[0].item<float>(), 2);
});
TEST(Disagreement, IsFoundOverGlooOnRequest) { testing::expect_all_passed(testing::run_ranks(over_gloo)); }

const testing::Scenario starts_anew("desync: new group", [] {
  auto context = std::make_optional(init({.backend = "shm", .timeout = 20s}));
  auto second = context->new_group({0, 1});
  EXPECT_THROW(second->all_reduce(torch::ones({context->rank() + 1})), DesyncError);
  auto third = context->new_group({0, 1});
  auto x = torch::ones({5});
  third->all_reduce(x);
  EXPECT_TRUE(torch::equal(x, torch::full({5}, 2.F)));
});
TEST(Disagreement, ANewGroupCanBeCreatedAfterwards) {
  testing::expect_all_passed(testing::run_ranks(starts_anew));
}

}  // namespace
}  // namespace lockstep
