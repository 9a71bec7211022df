// SPDX-License-Identifier: BSD-3-Clause
// Which address the ranks use to reach each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>

#include "backends/gloo/gloo_backend.h"

namespace lockstep::backends {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

BackendRequest request_of_two(bool one_host) {
  return {.store = c10::make_intrusive<c10d::HashStore>(), .rank = 0, .size = 2, .one_host = one_host};
}

TEST(Route, OneHostUsesTheLoopback) { EXPECT_EQ(shared_route(request_of_two(true)), "127.0.0.1"); }

TEST(Route, ALoopbackMasterOnSeveralHostsIsAnError) {
  const auto request = request_of_two(false);
  request.store->set("route/1", std::string("127.0.0.1"));
  EXPECT_THAT([&] { shared_route(request); },
              ThrowsMessage<RendezvousError>(AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("lo (127.0.0.1)"))));
}

TEST(Route, AnUnresolvableMasterIsNamedWithTheInterfaces) {
  EXPECT_THAT(
      [] { local_address_towards("no-such-host.invalid"); },
      ThrowsMessage<RendezvousError>(AllOf(HasSubstr("no-such-host.invalid"), HasSubstr("lo (127.0.0.1)"))));
}

TEST(Route, InterfacesAreKnownByName) {
  EXPECT_EQ(interfaces_named("lo,lo"), (std::vector<std::string>{"lo", "lo"}));
  EXPECT_THAT([] { interfaces_named("lo,nosuch0"); },
              ::testing::ThrowsMessage<RendezvousError>(
                  ::testing::AllOf(::testing::HasSubstr("nosuch0"), ::testing::HasSubstr("lo ("))));
}

}  // namespace
}  // namespace lockstep::backends
