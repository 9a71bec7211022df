// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "unit/doctor/findings.h"

namespace lockstep::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

Report report_of(const std::string& host) {
  return {.host = host,
          .lockstep = "0.1.0",
          .libtorch = "2.13.0",
          .cores = 16,
          .memory = std::uint64_t{64} << 30,
          .gpus = 2,
          .findings = {ok("clock", "synchronized"), warning("open files", "few", "more")}};
}

std::vector<HostReport> two_hosts() {
  std::vector<HostReport> hosts{{.host = "a", .report = report_of("a")},
                                {.host = "me@b", .report = report_of("node-b")}};
  hosts[0].report.peers = {{.host = "b", .offset = -0.02, .uncertainty = 0.01}};
  hosts[1].report.peers = {{.host = "a", .offset = 0.02, .uncertainty = 0.01}};
  return hosts;
}

TEST(Hosts, EqualHostsHaveNoDifferences) { EXPECT_THAT(compare_hosts(two_hosts()), IsEmpty()); }

TEST(Hosts, AreComparedWithEachOther) {
  auto hosts = two_hosts();
  hosts[1].report.lockstep = "0.2.0";
  hosts[1].report.libtorch = "";
  hosts[1].report.cores = 8;
  hosts[1].report.gpus = 1;
  hosts[1].report.peers[0].offset = 3.5;
  EXPECT_THAT(compare_hosts(hosts),
              ElementsAre(is_warning("0.1.0 on a; 0.2.0 on me@b"), is_warning("unknown on me@b; 2.13.0 on a"),
                          is_warning("16 on a; 8 on me@b"), is_warning("1 on me@b; 2 on a"),
                          is_warning("me@b is 3.5 s behind a")));
}

TEST(Hosts, ClocksDifferOnlyBeyondTheUncertainty) {
  auto hosts = two_hosts();
  hosts[1].report.peers[0].offset = 3.5;
  hosts[1].report.peers[0].uncertainty = 3.45;
  EXPECT_THAT(compare_hosts(hosts), IsEmpty());
}

TEST(Hosts, AMissingReportIsAProblem) {
  auto hosts = two_hosts();
  hosts[1] = {.host = "b", .error = "Permission denied (publickey)"};
  EXPECT_THAT(compare_hosts(hosts), ElementsAre(is_problem("Permission denied")));
  EXPECT_THAT(hosts_text(hosts, compare_hosts(hosts), std::nullopt),
              AllOf(ContainsRegex("\nb +- "), HasSubstr("between the hosts:\n  problem  host b")));
}

TEST(Hosts, AreShownInATable) {
  const auto text = hosts_text(two_hosts(), {}, std::nullopt);
  EXPECT_THAT(text, ContainsRegex("\na +16 +64.0 GiB +2 +0.1.0 +2.13.0 +- +0 +1\n"));
  EXPECT_THAT(text, ContainsRegex("\nme@b \\(node-b\\) +16 .* -0.020 s +0 +1\n"));
  EXPECT_THAT(text, HasSubstr("\na:\n  warning  open files  few\n                       -> more\n"));
  EXPECT_THAT(text, Not(HasSubstr("synchronized")));
}

TEST(Hosts, MustBeListedOnce) {
  check_hosts({"a", "b"});
  EXPECT_THAT(
      [] {
        check_hosts({"a", "me@a"});
      },
      ThrowsMessage<ArgumentError>(HasSubstr("a is listed twice; list each host once")));
  EXPECT_THROW(check_hosts({"a", ""}), ArgumentError);
  EXPECT_THROW(check_hosts({"-oProxyCommand=x"}), ArgumentError);
}

TEST(Report, RoundTripsThroughJson) {
  auto report = report_of("a");
  report.peers = {{.host = "b", .error = "refused"}, {.host = "c", .offset = 1.5, .uncertainty = 0.25}};
  const auto document = report_json(report);
  EXPECT_EQ(document["warnings"], 1);
  EXPECT_EQ(document["problems"], 0);
  const auto parsed = parse_report(document);
  EXPECT_EQ(report_json(parsed), document);
  EXPECT_EQ(parsed.peers[1].offset, 1.5);
  EXPECT_EQ(parsed.peers[0].offset, std::nullopt);
}

TEST(Report, SumsUp) {
  EXPECT_EQ(summary(report_of("a").findings), "0 problems, 1 warning, 1 ok");
  EXPECT_THAT(report_text(report_of("a")), AllOf(HasSubstr("ok       clock       synchronized\n"),
                                                 HasSubstr("\n0 problems, 1 warning, 1 ok\n")));
}

}  // namespace
}  // namespace lockstep::doctor
