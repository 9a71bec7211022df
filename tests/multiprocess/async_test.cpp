// SPDX-License-Identifier: BSD-3-Clause
// Outstanding calls, and messages between two ranks.
#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "multiprocess/rank_data.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using testing::empty_each;
using testing::expect_equal;
using testing::rank_data;
using testing::sum_of_ranks;

class Async : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Worlds, Async, testing::backends_and_ranks({1, 2, 3, 4}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, Async, testing::two_hosts(2, 2), testing::name_of_case);

const testing::Scenario many("async many", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const int size = context.world_size();
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(rank_data(context.rank(), 1000 * i));
    works.push_back(context.group().all_reduce_async(tensors.back()));
  }
  // Each rank waits in a different order: forwards, backwards, forwards...
  if (context.rank() % 2 == 1) std::ranges::reverse(works);
  for (auto& work : works) work.wait();
  for (auto& work : works) {
    work.wait();  // a second wait does nothing
    EXPECT_TRUE(work.is_completed());
  }
  for (int i = 0; i < 20; ++i)
    expect_equal(tensors[static_cast<std::size_t>(i)], sum_of_ranks(size, 1000 * i));
  for (const auto& call : context.group().recent_calls()) EXPECT_EQ(call.state, CallState::completed);
});
TEST_P(Async, ManyOutstandingWaitedInAnyOrder) { run(many); }

const testing::Scenario kinds("async kinds", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto& group = context.group();
  const int size = context.world_size();
  const auto own = rank_data(context.rank(), 7);
  const bool root = context.is_main_process();
  std::vector<Work> works;
  const auto average = own.clone();
  works.push_back(group.all_reduce_async(average, ReduceOp::AVG));
  const auto cast = own.clone();
  works.push_back(group.broadcast_async(cast, 0));
  const auto reduced = own.clone();
  works.push_back(group.reduce_async(reduced, 0));
  const auto all = empty_each(size, 7);
  works.push_back(group.all_gather_async(all, own));
  const auto whole = torch::zeros({7 * size});
  works.push_back(group.all_gather_into_tensor_async(whole, own));
  const auto gathered = root ? empty_each(size, 7) : std::vector<at::Tensor>{};
  works.push_back(group.gather_async(own, gathered, 0));
  const auto scattered = torch::zeros({7});
  works.push_back(group.scatter_async(scattered, root ? empty_each(size, 7) : std::vector<at::Tensor>{}, 0));
  const auto part = torch::zeros({7});
  works.push_back(
      group.reduce_scatter_async(part, std::vector<at::Tensor>(static_cast<std::size_t>(size), own)));
  const auto same_part = torch::zeros({7});
  works.push_back(group.reduce_scatter_tensor_async(same_part, own.repeat({size})));
  const auto exchanged = empty_each(size, 7);
  works.push_back(
      group.all_to_all_async(exchanged, std::vector<at::Tensor>(static_cast<std::size_t>(size), own)));
  const auto mixed = torch::zeros({7 * size});
  works.push_back(group.all_to_all_single_async(mixed, own.repeat({size})));
  works.push_back(group.barrier_async());
  for (auto& work : works) work.wait();
  const auto sum = sum_of_ranks(size, 7);
  expect_equal(average, sum / size);
  expect_equal(cast, rank_data(0, 7));
  if (root) expect_equal(reduced, sum);
  for (int rank = 0; rank < size; ++rank) {
    expect_equal(all[static_cast<std::size_t>(rank)], rank_data(rank, 7));
    expect_equal(exchanged[static_cast<std::size_t>(rank)], rank_data(rank, 7));
    if (root) expect_equal(gathered[static_cast<std::size_t>(rank)], rank_data(rank, 7));
  }
  expect_equal(whole, torch::cat(all));
  expect_equal(mixed, torch::cat(all));
  expect_equal(part, sum);
  expect_equal(same_part, sum);
});
TEST_P(Async, EveryKindOutstandingAtOnce) { run(kinds); }

const testing::Scenario dropped("async dropped", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  for (int i = 0; i < 5; ++i) (void)context.group().all_reduce_async(rank_data(context.rank(), 1000));
  auto x = rank_data(context.rank(), 10);
  context.group().all_reduce(x);
  expect_equal(x, sum_of_ranks(context.world_size(), 10));
});
TEST_P(Async, ADroppedWorkContinues) { run(dropped); }

class Messages : public testing::EveryBackend {};
class MessagesOfFour : public testing::EveryBackend {};
INSTANTIATE_TEST_SUITE_P(Worlds, Messages, testing::backends_and_ranks({2}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Worlds, MessagesOfFour, testing::backends_and_ranks({4}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(Hosts, MessagesOfFour, testing::two_hosts(2, 2), testing::name_of_case);

const testing::Scenario messages("async messages", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto& group = context.group();
  if (context.rank() == 0) {
    // Gloo's send waits for the receive, so the first must not block the second.
    auto first = group.send_async(rank_data(1, 7), 1, 1);
    group.send(rank_data(2, 7, at::kLong), 1, 2);
    first.wait();
    auto empty = torch::zeros({0});
    group.send(empty, 1, 3);
    auto answer = torch::zeros({3, 2}, at::kComplexFloat);
    EXPECT_EQ(group.recv(answer, 1), 1);
    expect_equal(answer, torch::ones({3, 2}, at::kComplexFloat));
  } else if (context.rank() == 1) {
    auto second = torch::zeros({7}, at::kLong);
    group.recv(second, 0, 2);  // by tag, not in the order of sending
    expect_equal(second, rank_data(2, 7, at::kLong));
    auto first = torch::zeros({7});
    group.recv(first, 0, 1);
    expect_equal(first, rank_data(1, 7));
    group.recv(torch::zeros({0}), 0, 3);
    group.send(torch::ones({3, 2}, at::kComplexFloat), 0);
  }
});
TEST_P(Messages, GoByTag) { run(messages); }

// Messages carry values in their logical order, whichever layouts the two tensors have.
const testing::Scenario between_layouts("async messages between layouts", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto& group = context.group();
  const int other = 1 - context.rank();
  const bool sends = context.rank() == 0;
  const auto columns = [](const at::Tensor& x) { return x.transpose(-1, -2).contiguous().transpose(-1, -2); };
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> orders{
      [](const at::Tensor& x) { return x.contiguous(); }, columns,
      [](const at::Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }};
  const std::vector<std::function<void(at::Tensor&)>> ways{
      [&](at::Tensor& x) { sends ? group.send(x, other) : void(group.recv(x, other)); },
      [&](at::Tensor& x) { (sends ? group.send_async(x, other) : group.recv_async(x, other)).wait(); },
      [&](at::Tensor& x) {
        if (sends) return group.send(x, other);
        auto work = group.recv_async(x, std::nullopt);
        work.wait();
        EXPECT_EQ(work.source_rank(), 0);
      },
      [&](at::Tensor& x) {
        batch_isend_irecv({{sends ? P2POp::Op(isend) : irecv, x, other}}).front().wait();
      }};
  for (const std::int64_t height : {3, 300}) {
    const auto values = rank_data(0, 2 * 3 * height * 5).view({2, 3, height, 5});
    for (const auto& sent : orders) {
      for (const auto& received : orders) {
        for (const auto& way : ways) {
          auto x = sends ? sent(values) : received(torch::zeros_like(values)).requires_grad_();
          way(x);
          expect_equal(x.detach(), values);
        }
      }
    }
  }
});
TEST_P(Messages, CarryValuesInLogicalOrder) { run(between_layouts); }

const testing::Scenario from_anybody("async from any rank", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const auto& group = context.group();
  if (context.rank() != 0) {
    auto work = group.send_async(torch::tensor({context.rank()}, at::kInt), 0, 5);
    work.wait();
    EXPECT_THROW((void)work.source_rank(), ArgumentError);
    return;
  }
  std::vector<int> senders;
  for (int i = 1; i < context.world_size(); ++i) {
    auto x = torch::zeros({1}, at::kInt);
    const int sender = group.recv(x, std::nullopt, 5);
    EXPECT_EQ(x.item<int>(), sender);
    senders.push_back(sender);
  }
  EXPECT_THAT(senders, ::testing::UnorderedElementsAre(1, 2, 3));
});
TEST_P(MessagesOfFour, ReceivesFromAnyRankReturnTheSender) { run(from_anybody); }

// Around a ring in both directions, of short and long messages; each rank begins with another message.
const testing::Scenario batches("async batches", [] {
  const auto context = init({.backend = testing::backend_under_test()});
  const int rank = context.rank(), size = context.world_size();
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  for (const std::int64_t count : {0, 5, 1'000'000}) {
    const auto from_next = torch::zeros({count}), first = torch::zeros({count}),
               second = torch::zeros({count});
    std::vector<P2POp> batch{{isend, rank_data(rank, count), next},
                             {isend, rank_data(rank + 10, count), next},
                             {irecv, first, before},
                             {.op = irecv, .tensor = second, .group = context.group(), .group_peer = before},
                             {irecv, from_next, next, {}, 4},
                             {isend, rank_data(rank + 20, count), before, {}, 4}};
    if (rank % 2 == 1) std::ranges::rotate(batch, batch.begin() + 2);
    for (auto& work : batch_isend_irecv(batch)) work.wait();
    expect_equal(first, rank_data(before, count));
    expect_equal(second, rank_data(before + 10, count));
    expect_equal(from_next, rank_data(next + 20, count));
  }
  const auto refuses = [&](const std::vector<P2POp>& list, const char* what) {
    EXPECT_THAT([&] { batch_isend_irecv(list); },
                ::testing::ThrowsMessage<ArgumentError>(::testing::HasSubstr(what)));
  };
  const auto whole = torch::ones({4, 4});
  const auto other = context.new_group({0, 1, 2, 3});
  // Nothing starts: the receives would never end.
  refuses({}, "no messages");
  refuses({{irecv, whole, next}, {isend, whole, size}}, "rank 4 is not in group default");
  refuses({{irecv, whole, next}, {.op = isend, .tensor = whole, .group_peer = size}},
          "send at async_test.cpp:");
  refuses({{irecv, whole}}, "message 0 has neither peer nor group_peer");
  refuses({{irecv, whole, next, {}, 0, next}}, "message 0 has peer and group_peer");
  refuses({{irecv, whole, next}, {irecv, whole.select(1, 0), next}}, "holes");
  refuses({{irecv, whole, next}, {isend, whole, next, other}}, "make a batch for each group");
  const auto row = [&](std::int64_t index) { return whole.view(-1).slice(0, 4 * index, 4 * index + 5); };
  refuses({{irecv, row(0), next}, {irecv, row(1), before}}, "messages 0 and 1 share memory");
  refuses({{isend, row(1), next}, {irecv, row(0), before}},
          "messages 1 and 0 share memory, and message 1 receives");
  for (const auto& call : context.group().recent_calls()) EXPECT_EQ(call.state, CallState::completed);
});
TEST_P(MessagesOfFour, ABatchIsInAnyOrder) { run(batches); }

}  // namespace
}  // namespace lockstep
