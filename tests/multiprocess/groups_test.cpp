// SPDX-License-Identifier: BSD-3-Clause
// Sub-groups, barriers, and who goes first.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "multiprocess/backends.h"
#include "multiprocess/rank_data.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::expect_equal;
using ::testing::HasSubstr;
using testing::rank_data;
using ::testing::ThrowsMessage;

constexpr const char* kFolder = "LOCKSTEP_TEST_FOLDER";

std::string mark(const std::string& name) { return Env().get(kFolder).value() + "/" + name; }

class Groups : public testing::EveryBackend {
 protected:
  static void run_in_folder(const testing::Scenario& scenario) {
    const testing::TempFolder folder;
    run(scenario, {{kFolder, folder.path().string()}});
  }
};
class MainProcessFirst : public Groups {};
INSTANTIATE_TEST_SUITE_P(Ranks, Groups, testing::backends_and_ranks({4}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, Groups, testing::two_hosts(2, 2), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Ranks, MainProcessFirst, testing::backends_and_ranks({3}), testing::name_of_case);

const testing::Scenario two_groups("groups two", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto evens = context.new_group({0, 2});
  const auto odds = context.new_group({3, 1}, {.group_desc = "odds"});
  const bool even = context.rank() % 2 == 0;
  EXPECT_EQ(static_cast<bool>(evens), even);
  EXPECT_EQ(static_cast<bool>(odds), !even);
  const auto& mine = even ? evens : odds;
  EXPECT_EQ(mine.name(), even ? "group 1" : "odds");
  EXPECT_EQ(mine.size(), 2);
  EXPECT_EQ(mine.rank(), (std::array{0, 1, 1, 0})[static_cast<std::size_t>(context.rank())]);
  EXPECT_EQ(mine.global_rank(mine.rank()), context.rank());
  EXPECT_EQ(mine.global_rank(0), even ? 0 : 3);
  // Both at the same time, and the default group in between.
  auto x = rank_data(context.rank(), 1000);
  auto work = mine.all_reduce_async(x);
  auto y = torch::ones({3});
  context.group().all_reduce(y);
  work.wait();
  expect_equal(x, even ? rank_data(0, 1000) + rank_data(2, 1000) : rank_data(1, 1000) + rank_data(3, 1000));
  expect_equal(y, torch::full({3}, 4.F));
  EXPECT_EQ(mine.broadcast_object(std::to_string(context.rank()), 0), even ? "0" : "3");
  EXPECT_EQ(mine.recent_calls().front().number, 1U);
});
TEST_P(Groups, TwoDisjointGroupsAtTheSameTime) { run(two_groups); }

const testing::Scenario split("groups split", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const int rank = context.rank();
  const auto sum_over = [&](const ProcessGroup& group) {
    const auto sum = torch::tensor(rank);
    group.all_reduce(sum);
    return sum.item<int>();
  };
  const auto halves = split_group(context.group(), {{1, 0}, {2, 3}}, {.timeout = std::chrono::seconds(50)});
  EXPECT_EQ(sum_over(halves), rank < 2 ? 1 : 5);
  EXPECT_EQ(halves.rank(), rank < 2 ? 1 - rank : rank - 2);
  EXPECT_EQ(halves.global_rank(0), rank < 2 ? 1 : 2);
  EXPECT_EQ(halves.name(), "default:split:1");
  EXPECT_EQ(halves.timeout(), std::chrono::seconds(50));
  // Only the ranks of the parent take part; the parts hold ranks within it.
  const auto parent = context.new_group({3, 1, 0}, {.backend = "gloo", .group_desc = "three"});
  if (parent) {
    const auto outer = split_group(parent, {{0, 2}});
    EXPECT_EQ(static_cast<bool>(outer), rank != 1);
    const auto first = split_group(parent, {{0}});
    if (rank == 0) {
      EXPECT_THAT([&] { first.barrier(); },
                  ThrowsMessage<ArgumentError>(AllOf(HasSubstr(": rank 2 is not in group three:split:2"),
                                                     HasSubstr("the parts [[0]], in ranks of group three"))));
    }
    if (outer) {
      EXPECT_EQ(outer.global_rank(0), 3);
      EXPECT_EQ(outer.backend_name(), "gloo");
      EXPECT_EQ(sum_over(outer), 3);
      EXPECT_EQ(split_group(outer, {{0}, {1}}).size(), 1);
    }
    EXPECT_EQ(sum_over(split_group(parent, {{0}, {2, 1}})), rank == 3 ? 3 : 1);
  }
  const auto again = split_group(context.group(), {{0, 3}, {1, 2}}, {.group_desc = "again"});
  EXPECT_EQ(again.name(), "again");
  EXPECT_EQ(sum_over(again), 3);
  for (const std::vector<std::vector<int>>& wrong :
       {std::vector<std::vector<int>>{}, {{}}, {{0, 4}}, {{0, 1}, {1, 2}}}) {
    EXPECT_THAT([&] { split_group(context.group(), wrong); },
                ThrowsMessage<ArgumentError>(HasSubstr("split_ranks is [")));
  }
});
TEST_P(Groups, SplitIntoParts) { run(split); }

// Every rank makes each call on a group, to which ranks 0 and 2 belong.
void call_each(const ProcessGroup& group) {
  const bool first = get_rank() == 0;
  const auto one = torch::ones({1}), two = torch::ones({2});
  const std::vector<at::Tensor> list{torch::ones({1}), torch::ones({1})}, none;
  all_reduce(one, ReduceOp::SUM, group);
  all_reduce_async(one, ReduceOp::SUM, group).wait();
  broadcast(one, 2, group);
  broadcast_async(one, 2, group).wait();
  reduce(one, 2, ReduceOp::SUM, group);
  reduce_async(one, 2, ReduceOp::SUM, group).wait();
  all_gather(list, one, group);
  all_gather_async(list, one, group).wait();
  all_gather_into_tensor(two, one, group);
  all_gather_into_tensor_async(two, one, group).wait();
  gather(one, first ? list : none, 0, group);
  gather_async(one, first ? list : none, 0, group).wait();
  scatter(one, first ? list : none, 0, group);
  scatter_async(one, first ? list : none, 0, group).wait();
  reduce_scatter(one, list, ReduceOp::SUM, group);
  reduce_scatter_async(one, list, ReduceOp::SUM, group).wait();
  reduce_scatter_tensor(one, two, ReduceOp::SUM, group);
  reduce_scatter_tensor_async(one, two, ReduceOp::SUM, group).wait();
  all_to_all({torch::zeros({1}), torch::zeros({1})}, list, group);
  all_to_all_async({torch::zeros({1}), torch::zeros({1})}, list, group).wait();
  all_to_all_single(torch::zeros({2}), two, {}, {}, group);
  all_to_all_single_async(torch::zeros({2}), two, {}, {}, group).wait();
  barrier(group);
  barrier_async(group).wait();
  monitored_barrier(group);
  if (get_rank() != 2) send(one, 2, group);
  if (get_rank() != 0) recv(one, 0, group);
  if (get_rank() != 2) isend(one, 2, group).wait();
  if (get_rank() != 0) irecv(one, 0, group).wait();
  std::vector<std::string> texts(2);
  all_gather_object(texts, "x", group);
  broadcast_object_list(texts, 0, group);
  gather_object("x", texts, 0, group);
  scatter_object_list(texts, first ? std::vector<std::string>{"a", "b"} : std::vector<std::string>(), 0,
                      group);
}

const testing::Scenario outside("groups outside", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto group = context.new_group({0, 2});
  if (group) return call_each(group);
  EXPECT_EQ(get_rank(group), -1);
  EXPECT_EQ(get_world_size(group), -1);
  const auto calls_before = context.group().recent_calls().size();
  ::testing::internal::CaptureStderr();
  const auto t = torch::full({2}, 7.F);
  all_reduce(t, ReduceOp::SUM, group);
  const auto warning = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning, HasSubstr("all_reduce() does nothing: rank " + std::to_string(context.rank()) +
                                 " is not in group group 1 of the ranks [0, 2], made at groups_test.cpp:"));
  EXPECT_THAT(warning, HasSubstr("test the group itself"));
  ::testing::internal::CaptureStderr();
  call_each(group);
  EXPECT_EQ(recv(t, 0, group), -1);
  EXPECT_TRUE(all_reduce_async(t, ReduceOp::SUM, group).is_completed());
  std::vector<std::string> texts{"kept"};
  all_gather_object(texts, "x", group);
  EXPECT_EQ(texts.front(), "kept");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  expect_equal(t, torch::full({2}, 7.F));
  EXPECT_EQ(context.group().recent_calls().size(), calls_before);
  const auto says_so = ThrowsMessage<ArgumentError>(
      AllOf(HasSubstr("is not in group group 1 of the ranks [0, 2], made at groups_test.cpp:"),
            HasSubstr("inside `if (group)`"), HasSubstr("std::optional that holds the group is always set")));
  EXPECT_THAT([&] { group.all_reduce(t); }, says_so);
  EXPECT_THAT([&] { group.barrier_async(); }, says_so);
  const std::optional<ProcessGroup> kept = group;
  EXPECT_TRUE(kept.has_value() && !*kept);
  EXPECT_THAT([&] { kept->barrier(); }, says_so);
  EXPECT_THAT([&] { (void)group.size(); }, says_so);
  EXPECT_THAT([&] { (void)get_backend(group); }, says_so);
  EXPECT_THAT([&] { (void)get_process_group_ranks(group); }, says_so);
  EXPECT_THAT([&] { (void)get_group_rank(group, 0); }, says_so);
  EXPECT_THAT([&] { split_group(group, {{0}}); }, says_so);
  EXPECT_EQ(group.name(), "group 1");
});
TEST_P(Groups, CallsOutsideOfAGroupSendNothing) { run(outside); }

const testing::Scenario outlives("groups outlives", [] {
  const auto kept = [] {
    const auto context = init({.backend = testing::backend_under_test()});
    auto group = context.new_group({1, 0});
    if (group) group.barrier();
    return group;
  }();
  if (!kept) return;
  EXPECT_THAT([&] { kept.barrier(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("group group 1"), HasSubstr("barrier at groups_test.cpp:"),
                                         HasSubstr("has been closed"))));
});
TEST_P(Groups, EndWithTheContext) { run(outlives); }

const testing::Scenario barriers("groups barriers", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  for (int round = 0; round < 10; ++round) {
    std::ofstream(mark(std::to_string(round) + "." + std::to_string(context.rank())));
    context.barrier();
    for (int rank = 0; rank < context.world_size(); ++rank) {
      EXPECT_TRUE(std::filesystem::exists(mark(std::to_string(round) + "." + std::to_string(rank))));
    }
  }
});
TEST_P(Groups, NoRankPassesABarrierBeforeAllHaveArrived) { run_in_folder(barriers); }

const testing::Scenario main_first("groups main first", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const int answer = context.main_process_first([&] {
    if (context.is_main_process()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for ranks that do not wait
      EXPECT_FALSE(std::filesystem::exists(mark("other")));
      std::ofstream(mark("main"));
    } else {
      EXPECT_TRUE(std::filesystem::exists(mark("main")));
      std::ofstream(mark("other"));
    }
    return 10 * context.rank();
  });
  EXPECT_EQ(answer, 10 * context.rank());
  context.main_process_first([] {});
});
TEST_P(MainProcessFirst, TheOthersFindItsFiles) { run_in_folder(main_first); }

const testing::Scenario main_throws("groups main throws", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto action = [&] {
    if (!context.is_main_process()) ADD_FAILURE() << "called after rank 0 failed";
    throw std::runtime_error("the disk is full");
  };
  if (context.is_main_process()) {
    EXPECT_THAT([&] { context.main_process_first(action); },
                ThrowsMessage<std::runtime_error>("the disk is full"));
    EXPECT_THROW(context.main_process_first([] { throw 5; }), int);
  } else {
    EXPECT_THAT([&] { context.main_process_first(action); },
                ThrowsMessage<Error>(AllOf(HasSubstr("rank 0 failed"), HasSubstr("the disk is full"))));
    EXPECT_THROW(context.main_process_first([] {}), Error);
  }
  context.barrier();  // the group still works
});
TEST_P(MainProcessFirst, IfItThrowsAllRanksThrow) { run(main_throws); }

}  // namespace
}  // namespace lockstep
