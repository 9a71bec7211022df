// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/peers.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/sockets.h"
#include "unit/doctor/findings.h"

namespace lockstep::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::chrono::seconds kPatience{60};

std::vector<Peer> meet_as(ConnectivityTest test, std::size_t self,
                          std::chrono::milliseconds timeout = kPatience) {
  test.self = self;
  return test_connectivity(test, timeout);
}

TEST(ConnectivityTest, ConnectsAllHosts) {
  const ReservedPort port;
  const ConnectivityTest test{
      .token = "t", .port = port.port(), .hosts = {"127.0.0.1", "127.0.0.2", "127.0.0.3"}};
  auto second = std::async(std::launch::async, [&] { return meet_as(test, 1); });
  auto third = std::async(std::launch::async, [&] { return meet_as(test, 2); });
  const auto first = meet_as(test, 0);
  for (const auto& peers : {first, second.get(), third.get()}) {
    ASSERT_THAT(peers, SizeIs(2));
    for (const auto& peer : peers) {
      EXPECT_THAT(peer.error, IsEmpty());
      ASSERT_TRUE(peer.offset.has_value());
      EXPECT_LE(std::abs(*peer.offset), peer.uncertainty + 1e-3);
    }
  }
  EXPECT_EQ(first[0].host, "127.0.0.2");
  EXPECT_EQ(first[1].host, "127.0.0.3");
}

TEST(ConnectivityTest, ReportsMissingHosts) {
  const ReservedPort port;
  const ConnectivityTest test{.token = "t", .port = port.port(), .hosts = {"127.0.0.1", "127.0.0.2"}};
  const auto peers = meet_as(test, 0, std::chrono::milliseconds(1));
  ASSERT_THAT(peers, SizeIs(1));
  EXPECT_THAT(check_peers(peers, port.port()), ElementsAre(is_problem("refused")));
}

TEST(ConnectivityTest, RejectsOtherRuns) {
  const ReservedPort port;
  const std::vector<std::string> hosts{"127.0.0.1", "127.0.0.2"};
  auto stranger = std::async(std::launch::async, [&] {
    return meet_as({.token = "other", .port = port.port(), .hosts = hosts}, 1, std::chrono::seconds(1));
  });
  const auto peers =
      meet_as({.token = "t", .port = port.port(), .hosts = hosts}, 0, std::chrono::milliseconds(500));
  EXPECT_THAT(peers.at(0).error, ::testing::AnyOf(HasSubstr("something else"), HasSubstr("refused")));
  EXPECT_THAT(stranger.get().at(0).error, ::testing::Not(IsEmpty()));
}

TEST(ConnectivityTest, NeedsItsPort) {
  const Deadline deadline(kPatience);
  const auto taken = listen_at(resolve("127.0.0.1", deadline).at(0));
  const ConnectivityTest test{
      .token = "t", .port = address_of(taken.get()).port(), .hosts = {"127.0.0.1", "127.0.0.2"}};
  EXPECT_THROW(test_connectivity(test, kPatience), Error);
}

TEST(ConnectivityTest, ArgumentIsOneWord) {
  const ConnectivityTest test{.token = "abc", .self = 1, .port = 5000, .hosts = {"a", "b.c"}};
  EXPECT_EQ(to_text(test), "abc,1,5000,a,b.c");
  const auto parsed = parse_connectivity_test("abc,1,5000,a,b.c");
  EXPECT_EQ(parsed.token, "abc");
  EXPECT_EQ(parsed.self, 1U);
  EXPECT_EQ(parsed.port, 5000);
  EXPECT_THAT(parsed.hosts, ElementsAre("a", "b.c"));
  for (const char* text :
       {"", "abc,1,5000", "abc,2,5000,a,b", "abc,x,5000,a", "abc,0,0,a", "abc,0,65536,a"}) {
    EXPECT_THROW(parse_connectivity_test(text), ArgumentError) << text;
  }
}

TEST(Sockets, ResolveNamesAndAddresses) {
  const Deadline deadline(kPatience);
  EXPECT_EQ(resolve("127.0.0.5", deadline).at(0).text(), "127.0.0.5");
  EXPECT_TRUE(resolve("127.0.0.5", deadline).at(0).is_loopback());
  EXPECT_FALSE(resolve("10.1.2.3", deadline).at(0).is_loopback());
  EXPECT_EQ(resolve("::1", deadline).at(0).with_port(77).port(), 77);
  EXPECT_THROW(resolve("no.such.host.invalid", deadline), Error);
}

}  // namespace
}  // namespace lockstep::doctor
