// SPDX-License-Identifier: BSD-3-Clause
// The backend as LibTorch's and Python's callers use it: through c10d, with futures, sequence numbers and
// events for the profiler.
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"

namespace lockstep {
namespace {

// Large enough not to be complete when the call returns.
at::Tensor large(float value) { return at::full({4'000'000}, value); }

const testing::Scenario futures("c10d callers: futures", [] {
  const auto context = init({.backend = "shm"});
  const auto backend = context.group().backend();
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> pending;
  for (int i = 0; i < 4; ++i) {
    std::vector<at::Tensor> tensors{large(static_cast<float>(i + context.rank()))};
    pending.push_back(backend->allreduce(tensors)->getFuture());
  }
  EXPECT_EQ(backend->getSequenceNumberForGroup(), 4U);
  for (std::size_t i = 0; i < pending.size(); ++i) {
    pending[i]->wait();
    const auto result = pending[i]->value().toTensorVector();
    EXPECT_TRUE(at::equal(result.at(0), large(static_cast<float>(2 * i + 1))));
  }
  std::vector<at::Tensor> parts{at::ones({2}), at::ones({3})};
  backend->allreduce_coalesced(parts)->wait();
  EXPECT_TRUE(at::equal(parts.at(1), at::full({3}, 2)));
  const auto of = [](std::int64_t rank) {
    return std::vector{at::full({2}, static_cast<float>(rank)), at::full({3}, static_cast<float>(rank + 5))};
  };
  auto own = of(context.rank());
  std::vector<std::vector<at::Tensor>> all{{at::empty({2}), at::empty({3})},
                                           {at::empty({2}), at::empty({3})}};
  backend->allgather_coalesced(all, own)->wait();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(all[rank][i], of(static_cast<std::int64_t>(rank))[i]));
  }
  std::vector<at::Tensor> joined{at::empty({4}), at::empty({2}, at::kLong)};
  std::vector<at::Tensor> shares{at::full({2}, static_cast<float>(context.rank())),
                                 at::full({1}, 7, at::kLong)};
  backend->allgather_into_tensor_coalesced(joined, shares)->wait();
  EXPECT_TRUE(at::equal(joined.at(0), at::tensor({0.F, 0.F, 1.F, 1.F})));
  EXPECT_TRUE(at::equal(joined.at(1), at::full({2}, 7, at::kLong)));
  backend->reduce_scatter_tensor_coalesced(shares, joined)->getFuture()->waitAndThrow();
  EXPECT_TRUE(at::equal(shares.at(0), at::full({2}, 2.F * static_cast<float>(context.rank()))));
  EXPECT_TRUE(at::equal(shares.at(1), at::full({1}, 14, at::kLong)));
  joined.pop_back();
  EXPECT_THROW((void)backend->allgather_into_tensor_coalesced(joined, shares), ArgumentError);
  // None starts: the calls of the other rank still meet these.
  const auto refuses = [](auto call, const std::string& text) {
    EXPECT_THAT(call, ::testing::ThrowsMessage<ArgumentError>(::testing::HasSubstr(text)));
  };
  std::vector<at::Tensor> twice(2, at::zeros({2}));
  refuses([&] { (void)backend->allreduce_coalesced(twice); }, "outputs[0] and outputs[1] share memory");
  std::vector<at::Tensor> expanded{at::zeros({1}).expand({2})};
  refuses([&] { (void)backend->allreduce_coalesced(expanded); }, "outputs[0] of shape [2] and strides [0]");
  std::vector<std::vector<at::Tensor>> lists{{twice[0]}, {twice[1]}};
  std::vector<at::Tensor> one{at::ones({2})};
  refuses([&] { (void)backend->allgather_coalesced(lists, one); }, "outputs[0] and outputs[1] share memory");
  std::vector<at::Tensor> halves{at::ones({1}), twice[0].slice(0, 0, 1)};
  std::vector<at::Tensor> wholes{twice[0], at::zeros({2})};
  refuses([&] { (void)backend->allgather_into_tensor_coalesced(wholes, halves); },
          "outputs[0] and inputs[1] share memory");
  // Interleaved columns are apart, although they have holes.
  const auto grid = at::zeros({3, 4});
  const auto column = [&](std::int64_t from, std::int64_t count) { return grid.narrow(1, from, count); };
  std::vector<at::Tensor> columns{column(0, 2), column(1, 2)};
  refuses([&] { (void)backend->allreduce_coalesced(columns); }, "outputs[0] and outputs[1] share memory");
  std::vector<std::vector<at::Tensor>> to_columns{{column(1, 2)}, {column(0, 3)}};
  std::vector<at::Tensor> from_column{column(1, 2)};
  refuses([&] { (void)backend->allgather_coalesced(to_columns, from_column); }, "share memory");
  to_columns = {{column(0, 2)}, {column(2, 2)}};
  from_column = {at::full({3, 2}, static_cast<float>(context.rank()))};
  backend->allgather_coalesced(to_columns, from_column)->wait();
  EXPECT_TRUE(at::equal(grid, at::tensor({0.F, 0.F, 1.F, 1.F}).expand({3, 4})));
  // As many elements in all.
  std::vector<std::vector<at::Tensor>> swapped{{at::empty({3}), at::empty({2})},
                                               {at::empty({3}), at::empty({2})}};
  refuses([&] { (void)backend->allgather_coalesced(swapped, own); },
          "outputs[0][0] is Float[3] but inputs[0] is Float[2]");
  swapped[0] = {at::empty({5})};
  refuses([&] { (void)backend->allgather_coalesced(swapped, own); }, "outputs[0] has 1 tensors, inputs 2");
  // Of three entries, and of one.
  const auto ones = at::diag(context.is_main_process() ? at::ones({3}) : at::tensor({1.F, 0.F, 0.F}));
  std::vector<at::Tensor> sparse{ones.to_sparse()};
  backend->allreduce(sparse)->wait();
  EXPECT_TRUE(at::equal(sparse.at(0).to_dense(), at::diag(at::tensor({2.F, 1.F, 1.F}))));
  // Of other sizes, and as many values.
  for (const bool is_hybrid : {false, true}) {
    const auto other = context.is_main_process() ? at::ones({2, 6})
                       : is_hybrid               ? at::ones({2, 6})
                                                 : at::ones({3, 4});
    sparse = {is_hybrid && !context.is_main_process() ? other.to_sparse(1) : other.to_sparse()};
    EXPECT_THAT(
        [&] { (void)backend->allreduce(sparse); },
        ::testing::ThrowsMessage<DesyncError>(::testing::AllOf(
            ::testing::HasSubstr("rank 0 has Float [2, 6] with 2 sparse dimensions"),
            ::testing::HasSubstr(is_hybrid ? "rank 1 has Float [2, 6] with 1" : "rank 1 has Float [3, 4]"))));
  }
  std::vector<at::Tensor> wrong{at::zeros({4}).slice(0, 0, 4, 2)};
  EXPECT_THROW((void)backend->allreduce(wrong), ArgumentError);
});
TEST(C10dCallers, GetFuturesThatCompleteByThemselves) {
  testing::expect_all_passed(testing::run_ranks(futures));
}

// Nobody calls wait(), which would look for lost ranks.
const testing::Scenario abandoned("c10d callers: abandoned", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::minutes(10)});
  if (!context.is_main_process()) return;
  std::vector<at::Tensor> tensors{at::ones({3})};
  const auto future = context.group().backend()->allreduce(tensors)->getFuture();
  try {
    future->waitAndThrow();
    ADD_FAILURE() << "the call ended without rank 1";
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("has left the group"));
  }
});
TEST(C10dCallers, GetFuturesThatFailWhenARankLeaves) {
  testing::expect_all_passed(testing::run_ranks(abandoned));
}

// Of calls in parts, too.
const testing::Scenario late("c10d callers: late", [] {
  const auto context = init({.backend = "shm"});
  for (const bool flat : {true, false}) {
    const auto group = context.new_group({0, 1}, {.timeout = std::chrono::seconds(2)});
    if (context.is_main_process()) {
      const auto backend = group.backend();
      std::vector<at::Tensor> parts{at::ones({2}), at::ones({3})};
      std::vector<at::Tensor> joined{at::ones({4}), at::ones({6})};
      const auto work = flat ? backend->allreduce_coalesced(parts)
                             : backend->allgather_into_tensor_coalesced(joined, parts);
      try {
        work->getFuture()->waitAndThrow();
        ADD_FAILURE() << "the call ended without rank 1";
      } catch (const TimeoutError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("after a timeout of 2"));
      }
    }
    context.barrier();  // rank 1 has its group until then
  }
});
TEST(C10dCallers, GetFuturesThatNameTheTimeout) { testing::expect_all_passed(testing::run_ranks(late)); }

// PyTorch's PowerSGD and quantization hooks wait for futures in the callbacks of futures.
const testing::Scenario nested_futures("c10d callers: nested futures", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  const auto backend = context.group().backend();
  const auto sum = [&](float value) {
    std::vector<at::Tensor> tensors{large(value)};
    return backend->allreduce(tensors)->getFuture();
  };
  for (int round = 0; round < 3; ++round) {
    const auto nested = sum(1)->then(
        [&](c10::ivalue::Future& outer) {
          const auto first = outer.value().toTensorVector().at(0).max().item<float>();
          const auto inner = sum(first);
          inner->waitAndThrow();
          const auto innermost = inner->then(
              [&](c10::ivalue::Future& done) {
                const auto last = sum(done.value().toTensorVector().at(0).max().item<float>());
                last->waitAndThrow();
                return last->value();
              },
              c10::ListType::ofTensors());
          innermost->waitAndThrow();
          return innermost->value();
        },
        c10::ListType::ofTensors());
    nested->waitAndThrow();
    EXPECT_TRUE(at::equal(nested->value().toTensorVector().at(0), large(8)));
  }
});
TEST(C10dCallers, WaitForFuturesInCallbacksOfFutures) {
  testing::expect_all_passed(testing::run_ranks(nested_futures));
}

std::mutex events_mutex;
std::vector<std::string> events;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  const std::lock_guard lock(events_mutex);
  events.emplace_back(function.name());
  return nullptr;
}

const testing::Scenario profiled("c10d callers: profiled", [] {
  const auto context = init({.backend = "shm"});
  const auto& group = context.group();
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::USER_SCOPE}));
  group.all_reduce(at::ones({4}));
  group.all_reduce_async(large(1)).wait();
  if (context.is_main_process()) {
    group.send(at::ones({4}), 1);
  } else {
    group.recv(at::ones({4}), 0);
  }
  group.barrier();
  at::removeCallback(handle);
  const std::lock_guard lock(events_mutex);
  EXPECT_THAT(events,
              ::testing::ElementsAre("shm:all_reduce", "shm:all_reduce",
                                     context.is_main_process() ? "shm:send" : "shm:recv", "shm:barrier"));
});
TEST(C10dCallers, FindEveryCallInTheProfiler) { testing::expect_all_passed(testing::run_ranks(profiled)); }

}  // namespace
}  // namespace lockstep
