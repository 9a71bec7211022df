// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/checks.h"
#include "unit/doctor/findings.h"

namespace lockstep::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Values = std::map<std::string, std::string>;

Network two_interfaces() {
  return {.interfaces = {{.name = "lo", .up = true, .loopback = true, .addresses = {"127.0.0.1"}},
                         {.name = "eth0", .up = true, .addresses = {"10.0.0.7"}},
                         {.name = "ib0", .up = false, .addresses = {}}},
          .host_name = "node7",
          .resolved = {"10.0.0.7"}};
}

TEST(CheckPorts, ReportFailures) {
  EXPECT_THAT(check_loopback({}), is_ok());
  EXPECT_THAT(check_loopback({.loopback_error = "refused"}), is_problem("refused"));
  EXPECT_THAT(check_own_address({}), is_warning("no interface besides loopback"));
  EXPECT_THAT(check_own_address({.own_address = "10.0.0.7"}), is_ok());
  EXPECT_THAT(check_own_address({.own_address = "10.0.0.7", .own_error = "timed out"}),
              is_problem("timed out"));
}

TEST(CheckPorts, CheckOnlyTheGivenPort) {
  EXPECT_THAT(check_port({}), IsEmpty());
  EXPECT_THAT(check_port({.port = 5000}), ElementsAre(is_ok()));
  EXPECT_THAT(check_port({.port = 5000, .port_error = "in use"}), ElementsAre(is_problem("in use")));
}

TEST(CheckInterfaces, ListsInterfacesThatAreUp) {
  EXPECT_EQ(check_interfaces(two_interfaces()).text, "lo (127.0.0.1), eth0 (10.0.0.7)");
  EXPECT_THAT(check_interfaces({}), is_problem("none is up"));
}

TEST(CheckHostName, ResolvesToThisHost) {
  auto network = two_interfaces();
  EXPECT_THAT(check_host_name(network), is_ok());
  network.resolved = {"127.0.1.1"};
  EXPECT_THAT(check_host_name(network), is_ok());
  network.resolved = {"10.0.0.8"};
  EXPECT_THAT(check_host_name(network),
              is_problem("resolves to 10.0.0.8, which is not an address of this host"));
  network.resolve_error = "node7 cannot be resolved: Name or service not known";
  EXPECT_THAT(check_host_name(network), is_warning("not known"));
}

Findings with(const Values& values) { return check_interface_variables(two_interfaces(), Env(values)); }

TEST(CheckInterfaceVariables, NameInterfacesThatAreUp) {
  EXPECT_THAT(with({}), IsEmpty());
  EXPECT_THAT(with({{"GLOO_SOCKET_IFNAME", "eth0"}}), ElementsAre(is_ok()));
  EXPECT_THAT(with({{"GLOO_SOCKET_IFNAME", "eth0,eth1"}}),
              ElementsAre(is_problem("no interface eth1 is up")));
  EXPECT_THAT(with({{"GLOO_SOCKET_IFNAME", "ib0"}}), ElementsAre(is_problem("no interface ib0 is up")));
  EXPECT_THAT(with({{"GLOO_SOCKET_IFNAME", "eth"}}), ElementsAre(is_problem("no interface eth is up")));
}

TEST(CheckInterfaceVariables, AcceptNcclsNotation) {
  EXPECT_THAT(with({{"NCCL_SOCKET_IFNAME", "eth"}}), ElementsAre(is_ok()));
  EXPECT_THAT(with({{"NCCL_SOCKET_IFNAME", "=eth"}}), ElementsAre(is_problem("no interface eth is up")));
  EXPECT_THAT(with({{"NCCL_SOCKET_IFNAME", "=eth0"}}), ElementsAre(is_ok()));
  EXPECT_THAT(with({{"NCCL_SOCKET_IFNAME", "^docker"}}), ElementsAre(is_ok()));
}

}  // namespace
}  // namespace lockstep::doctor
