// SPDX-License-Identifier: BSD-3-Clause
#include "node/member_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

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

}  // namespace
}  // namespace lockstep::node
