// SPDX-License-Identifier: BSD-3-Clause
#include "node/member_exchange.h"

#include <array>
#include <future>
#include <new>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "base/version.h"
#include "node/node_group.h"
#include "support/error_of.h"

namespace lockstep::node {
namespace {

// Otherwise a rank that cannot come any more is awaited until the deadline.
TEST(MemberExchange, EndsWhenTheStoreIsGone) {
  const auto gone = [] { throw std::runtime_error("the store is gone"); };
  const ExchangePoint point{.publish = [](const std::string&) {},
                            .lookup = [] { return std::string(); },
                            .complain = [&](const std::string&) { gone(); },
                            .complaint =
                                [&] {
                                  gone();
                                  return std::string();
                                }};
  const Deadline deadline(std::chrono::minutes(10));
  const RankMemory own{.segment = std::make_shared<SharedMemory>(SharedMemory::create("test", 4096))};
  EXPECT_THAT(testing::error_of<RendezvousError>([&] { exchange_members(0, 2, own, point, deadline); }),
              ::testing::HasSubstr("the process that serves the ranks' store has ended"));
}

// The error of rank 0 if the memory of rank 1 begins with these numbers.
std::string error_beside(const std::array<std::uint64_t, 2>& numbers) {
  ExchangePoint point;
  point.threads = std::make_shared<ThreadExchange>();
  point.group = "test";
  const Deadline deadline(std::chrono::minutes(1));
  const NodeGroup::Part part{.bytes = 4096};
  const auto other = std::async(std::launch::async, [&] {
    auto memory = SharedMemory::create("test", NodeGroup::backend_offset() + part.bytes);
    new (memory.data()) std::array(numbers);
    exchange_members(1, 2, {.segment = std::make_shared<const SharedMemory>(std::move(memory))}, point,
                     deadline);
  });
  return testing::error_of<RendezvousError>([&] { NodeGroup::meet(0, 2, part, "test", point, deadline); });
}

TEST(NodeGroup, RefusesMemoryInOtherFormats) {
  const auto recorder = formats::kFlightRecorder.number;
  const auto layout = formats::kSharedMemory.number;
  EXPECT_EQ(
      error_beside({recorder + 70, layout}),
      fmt::format(
          "rank 0 has flight recorder format {} of Lockstep {}, but rank 1 of this host has format {}; build the programs "
          "of all ranks from the same sources of Lockstep",
          recorder, lockstep::version(), recorder + 70));
  EXPECT_THAT(error_beside({recorder, 0}), ::testing::HasSubstr("shared memory format"));
}

}  // namespace
}  // namespace lockstep::node
