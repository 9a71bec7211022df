// SPDX-License-Identifier: BSD-3-Clause
// Ranks that do not come, do not call, or go: every other rank learns it, in time and by name.
#include <netinet/in.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "multiprocess/backends.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

const testing::Scenario joins_within_5s("joins within 5 s", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 5s});
  context.barrier();
});

TEST(Failures, MissingRanksAreNamedOnEveryOtherRank) {
  const auto results = testing::run_ranks(joins_within_5s, {.world_size = 4, .absent = {1, 3}});
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].err,
                AllOf(HasSubstr("rank " + std::to_string(rank) + " of 4"), HasSubstr("ranks 1, 3")));
  }
}

TEST(Failures, ARank0ThatNeverArrivesIsNamed) {
  const auto results = testing::run_ranks(joins_within_5s, {.world_size = 3, .absent = {0}});
  for (const int rank : {1, 2}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].err, HasSubstr("rank 0 has not arrived: nobody listens at 127.0.0.1:"));
  }
}

const testing::Scenario meets_by_file_within_5s("meets by file within 5 s", [] {
  const auto context =
      init({.init_method = "file:///tmp/lockstep-nobody-else-" + *Env().get("MASTER_PORT"), .timeout = 5s});
});

TEST(Failures, MissingRanksAreNamedWithAFile) {
  const auto results = testing::run_ranks(meets_by_file_within_5s, {.world_size = 3, .absent = {1}});
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_THAT(results[rank].err, HasSubstr("missing: 1."));
  }
}

// A listener of somebody else's.
class Occupant {
 public:
  Occupant() : socket_(::socket(AF_INET6, SOCK_STREAM, 0)) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ::listen(socket_.get(), 8);
    socklen_t length = sizeof(address);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin6_port);
  }
  std::string port() const { return std::to_string(port_); }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

TEST(Failures, AUsedPortIsNamed) {
  const Occupant occupant;
  const auto results = testing::run_ranks(
      joins_within_5s, {.world_size = 2, .env = {{"MASTER_PORT", occupant.port()}}, .absent = {1}});
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].err,
              AllOf(HasSubstr("cannot listen on port " + occupant.port()), HasSubstr("MASTER_PORT")));
}

TEST(Failures, AMasterAddressThatDoesNotResolveIsNamed) {
  const auto results =
      testing::run_ranks(joins_within_5s, {.env = {{"MASTER_ADDR", "no-such-host.invalid"}}});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("no-such-host.invalid"));
  }
}

TEST(Failures, AMissingInterfaceIsNamedWithTheExistingOnes) {
  const auto results = testing::run_ranks(joins_within_5s, {.env = {{"GLOO_SOCKET_IFNAME", "nosuch0"}}});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("nosuch0"), HasSubstr("lo (127.0.0.1)")));
  }
}

TEST(Failures, ATransportThatGlooDoesNotHaveIsNamed) {
  const auto results = testing::run_ranks(joins_within_5s, {.env = {{"GLOO_DEVICE_TRANSPORT", "TCP_TLS"}}});
  // Rank 0 takes the store with it, which the other rank may still need.
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("GLOO_DEVICE_TRANSPORT=TCP_TLS"), HasSubstr("WireGuard")));
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 1);
}

const testing::Scenario one_throws("one throws", [] {
  const auto context = init();
  context.barrier();
  if (context.rank() == 1) throw Error("out of cheese");
  auto x = torch::ones({1000});
  for (int i = 0; i < 10; ++i) context.group().all_reduce(x);
});

TEST(Failures, ARankThatThrowsLeavesImmediatelyAndTheOthersSeeIt) {
  const auto results = testing::run_ranks(one_throws, {.world_size = 2});
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_THAT(results[1].err, HasSubstr("out of cheese"));
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("all_reduce #"), HasSubstr("failures_test.cpp:"),
                                    HasSubstr("rank 0 of 2"), HasSubstr("another rank is gone")));
}

const testing::Scenario one_throws_with_calls_under_way("one throws with calls under way", [] {
  const auto context = init();
  context.barrier();
  if (context.rank() == 1) {
    auto x = torch::ones({1000});
    const auto work = context.group().all_reduce_async(x);
    throw Error("out of cheese");
  }
  auto y = torch::ones({1});
  (void)context.group().recv(y, 1, 3);  // never sent: this rank does not make the other call
});

TEST(Failures, LeavingDuringACallDoesNotHang) {
  const auto results = testing::run_ranks(one_throws_with_calls_under_way, {.timeout = 30s});
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_FALSE(results[1].timed_out);
  EXPECT_THAT(results[1].err, HasSubstr("out of cheese"));
  EXPECT_EQ(results[0].exit_code, 1);
}

const testing::Scenario one_does_not_call("one does not call", [] {
  const auto context = init({.timeout = 4s});
  auto x = torch::ones({10});
  if (context.rank() == 0) {
    context.group().all_reduce(x);
  } else {
    auto y = torch::ones({1});
    (void)context.group().recv(y, 0, 9);
  }
});

TEST(Failures, ACallThatOneRankDoesNotMakeEndsAtTheTimeout) {
  const auto results = testing::run_ranks(one_does_not_call, {.timeout = 30s});
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("all_reduce #1 of Float[10] at failures_test.cpp:")));
}

}  // namespace
}  // namespace lockstep
