// SPDX-License-Identifier: BSD-3-Clause
// Ranks that make different calls throw on all ranks before any data is mixed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::Property;
using ::testing::Throws;
using ::testing::ThrowsMessage;

// Rank 1 makes a different call; the text has to name both calls.
void expect_desync(const std::function<void(const ProcessGroup&)>& usual,
                   const std::function<void(const ProcessGroup&)>& other, const std::string& first,
                   const std::string& second) {
  const auto context = init({.backend = "shm", .timeout = 20s});
  context.barrier();
  const auto& call = context.rank() == 1 ? other : usual;
  const auto text = AllOf(HasSubstr("the ranks make different calls"), HasSubstr(first), HasSubstr(second),
                          HasSubstr("disagreement_test.cpp:"));
  EXPECT_THAT([&] { call(context.group()); }, Throws<DesyncError>(AllOf(Property(&std::exception::what, text),
                                                                        Property(&Error::rank, Optional(1)),
                                                                        Property(&Error::group, "default"))));
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

// What ranks may do differently, as the error calls it. Each is found over every backend.
struct Difference {
  std::string what;
  std::function<void(const ProcessGroup&)> usual;
  std::function<void(const ProcessGroup&)> other;
};

at::Tensor column_major() { return torch::ones({4, 3}).t(); }

std::vector<at::Tensor> each_of(const ProcessGroup& group, std::int64_t count) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < group.size(); ++i) tensors.push_back(torch::ones({count}));
  return tensors;
}

std::vector<Difference> differences() {
  const auto sum = [](const ProcessGroup& group) { group.all_reduce(torch::ones({3, 4})); };
  return {
      {"kind of call", sum,
       [](const ProcessGroup& group) {
         group.broadcast(torch::ones({3, 4}), 1);
       }},
      {"dtype", sum,
       [](const ProcessGroup& group) {
         group.all_reduce(torch::ones({3, 4}, at::kInt));
       }},
      {"operation", sum,
       [](const ProcessGroup& group) {
         group.all_reduce(torch::ones({3, 4}), ReduceOp::MAX);
       }},
      {"operation", sum,
       [](const ProcessGroup& group) {
         group.all_reduce(torch::ones({3, 4}), ReduceOp::AVG);
       }},
      {"root", [](const ProcessGroup& group) { group.reduce(torch::ones({3}), 0); },
       [](const ProcessGroup& group) { group.reduce(torch::ones({3}), 1); }},
      {"shape", sum,
       [](const ProcessGroup& group) {
         group.all_reduce(torch::ones({4, 3}));
       }},
      {"memory layout", sum, [](const ProcessGroup& group) { group.all_reduce(column_major()); }},
      {"memory layout",
       [](const ProcessGroup& group) {
         group.broadcast(torch::ones({3, 4}), 0);
       },
       [](const ProcessGroup& group) { group.broadcast(column_major(), 0); }},
      {"sizes", [](const ProcessGroup& group) { group.all_gather(each_of(group, 3), torch::ones({3})); },
       [](const ProcessGroup& group) { group.all_gather(each_of(group, 2), torch::ones({2})); }},
      {"sizes", [](const ProcessGroup& group) { group.gather(torch::ones({3}), each_of(group, 3), 0); },
       [](const ProcessGroup& group) { group.gather(torch::ones({2}), {}, 0); }},
      {"sizes",
       [](const ProcessGroup& group) {
         group.all_to_all_single(torch::ones({4}), torch::ones({4}), {1, 3}, {1, 3});
       },
       [](const ProcessGroup& group) {
         group.all_to_all_single(torch::ones({4}), torch::ones({4}), {2, 2}, {2, 2});
       }},
  };
}

const testing::Scenario every_difference("desync: every difference", [] {
  const auto backend = testing::backend_under_test();
  // shm always compares calls.
  const auto context = init({.backend = backend, .timeout = 20s, .check_calls = true});
  for (const auto& [what, usual, other] : differences()) {
    const auto group = context.new_group({0, 1});
    const auto text = backend == "shm" ? std::string() : "They differ in " + what;
    EXPECT_THAT(
        [&] { (context.rank() == 0 ? usual : other)(group); },
        ThrowsMessage<DesyncError>(AllOf(HasSubstr("the ranks make different calls"), HasSubstr(text))))
        << what;
  }
  auto x = torch::ones({12});
  context.group().all_reduce(x);
  EXPECT_EQ(x[0].item<float>(), 2);
});

class DisagreementOverEveryBackend : public testing::EveryBackend {};
TEST_P(DisagreementOverEveryBackend, IsNamed) { run(every_difference); }
INSTANTIATE_TEST_SUITE_P(Ranks, DisagreementOverEveryBackend, testing::backends_and_ranks({2}),
                         testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, DisagreementOverEveryBackend, testing::two_hosts(1, 1),
                         testing::name_of_case);

// The ranks of a host compare the whole calls, not only the parts that they make of them.
const testing::Scenario on_one_host("desync: on one host", [] {
  const auto context = init({.backend = "hierarchical", .timeout = 20s});
  context.barrier();
  EXPECT_THAT(
      [&] {
        context.group().all_reduce(context.rank() == 0 ? column_major() : torch::ones({3, 4}));
      },
      ThrowsMessage<Error>(
          HasSubstr(context.rank() < 2 ? "the ranks make different calls" : "another rank is gone")));
});
TEST(Disagreement, IsFoundOnEachHost) {
  testing::expect_all_passed(testing::run_ranks(
      on_one_host, {.world_size = 3, .rank_env = testing::hosts_of("hierarchical_2_1", 3)}));
}

const testing::Scenario starts_anew("desync: new group", [] {
  auto context = std::make_optional(init({.backend = "shm", .timeout = 20s}));
  auto second = context->new_group({0, 1});
  EXPECT_THROW(second.all_reduce(torch::ones({context->rank() + 1})), DesyncError);
  auto third = context->new_group({0, 1});
  auto x = torch::ones({5});
  third.all_reduce(x);
  EXPECT_TRUE(torch::equal(x, torch::full({5}, 2.F)));
});
TEST(Disagreement, ANewGroupCanBeCreatedAfterwards) {
  testing::expect_all_passed(testing::run_ranks(starts_anew));
}

}  // namespace
}  // namespace lockstep
