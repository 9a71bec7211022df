// SPDX-License-Identifier: BSD-3-Clause
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/sockets.h"

namespace lockstep {
namespace {

TEST(ReservedPort, ManyAtOnceDiffer) {
  std::vector<ReservedPort> ports(50);
  std::set<int> distinct;
  for (const auto& port : ports) distinct.insert(port.port());
  EXPECT_EQ(distinct.size(), ports.size());
}

TEST(ReservedPort, AServerThatReusesAddressesCanListenThere) {
  const ReservedPort reserved;
  const UniqueFd server(::socket(AF_INET6, SOCK_STREAM, 0));
  const int on = 1;
  ::setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(reserved.port());
  EXPECT_EQ(::bind(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(server.get(), 1), 0);
}

}  // namespace
}  // namespace lockstep
