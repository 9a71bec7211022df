// SPDX-License-Identifier: BSD-3-Clause
// `lockstep doctor`, the real programs, on this host and on "hosts" that a script in place of ssh makes of
// it.
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "base/sockets.h"
#include "base/unique_fd.h"
#include "support/fake_smi.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing::doctor_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;
using Env = std::map<std::string, std::string>;

struct Result {
  int code = 0;
  std::string out;
  std::string err;
};

// Whatever the environment of the tests is, these say nothing.
const Env kQuiet{{"OMP_NUM_THREADS", ""}, {"MASTER_PORT", ""},        {"RANK", ""},
                 {"WORLD_SIZE", ""},      {"GLOO_SOCKET_IFNAME", ""}, {"CUDA_VISIBLE_DEVICES", ""}};

Result doctor(Words options, Env env = {}) {
  options.insert(options.begin(), "doctor");
  env.insert(kQuiet.begin(), kQuiet.end());
  LauncherProcess process(options, {.env = env, .watchdog = std::chrono::seconds(200)});
  const int code = process.finish();
  return {code, process.out(), process.err()};
}

// [check]: its finding.
std::map<std::string, nlohmann::json> findings_of(const nlohmann::json& report) {
  std::map<std::string, nlohmann::json> by_check;
  for (const auto& finding : report.at("findings")) by_check[finding.at("check")] = finding;
  return by_check;
}

std::map<std::string, nlohmann::json> doctor_findings(Words options, const Env& env = {}) {
  options.emplace_back("--json");
  const auto result = doctor(options, env);
  EXPECT_THAT(result.err, IsEmpty());
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(result.code, report.at("problems") == 0 ? 0 : 1);
  return findings_of(report);
}

TEST(DoctorCommand, ChecksLibTorchAndTheBackends) {
  const auto findings = doctor_findings({});
  EXPECT_THAT(findings.at("libtorch")["text"], ::testing::MatchesRegex("[0-9.]+, .*"));
  for (const char* check : {"libtorch", "backend gloo", "backend shm", "loopback", "shared memory"}) {
    EXPECT_EQ(findings.at(check)["severity"], "ok") << findings.at(check);
  }
  EXPECT_THAT(findings.at("backend gloo")["text"], HasSubstr("two processes"));
}

TEST(DoctorCommand, PrintsReadableLines) {
  const auto result = doctor({});
  EXPECT_THAT(result.out, AllOf(HasSubstr(host_name() + ": Lockstep "), ContainsRegex("\nok +libtorch +"),
                                ContainsRegex("\n[0-9]+ problems?, [0-9]+ warnings?, [0-9]+ ok\n")));
}

TEST(DoctorCommand, ReportsABrokenBackend) {
  const auto findings = doctor_findings({}, {{"GLOO_SOCKET_IFNAME", "nosuch0"}});
  EXPECT_EQ(findings.at("backend gloo")["severity"], "problem");
  EXPECT_THAT(findings.at("backend gloo")["text"], ::testing::StartsWith("GLOO_SOCKET_IFNAME names"));
  EXPECT_EQ(findings.at("GLOO_SOCKET_IFNAME")["severity"], "problem");
  EXPECT_EQ(findings.at("backend shm")["severity"], "ok");
}

// A port of every address on which somebody listens.
class TakenPort {
 public:
  TakenPort() {
    if (::listen(socket_.get(), 1) != 0) throw std::runtime_error("cannot listen");
    socklen_t length = sizeof(address_);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &length);
  }
  std::string number() const { return std::to_string(ntohs(address_.sin_port)); }

 private:
  UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address_{};
};

TEST(DoctorCommand, DistinguishesFreeAndUsedPorts) {
  const ReservedPort free;
  const TakenPort taken;
  const auto findings =
      doctor_findings({"--port", taken.number()}, {{"MASTER_PORT", std::to_string(free.port())}});
  EXPECT_EQ(findings.at("port " + taken.number())["severity"], "problem");
  EXPECT_THAT(findings.at("port " + taken.number())["text"], HasSubstr("in use"));
  EXPECT_EQ(findings.count("MASTER_PORT"), 0U);
  const auto others =
      doctor_findings({"--port", std::to_string(free.port())}, {{"MASTER_PORT", taken.number()}});
  EXPECT_EQ(others.at("port " + std::to_string(free.port()))["severity"], "ok");
  EXPECT_EQ(others.at("MASTER_PORT")["severity"], "problem");
}

TEST(DoctorCommand, ChecksTheGpus) {
  const auto smi = two_gpus();
  const auto findings = doctor_findings({}, {{"PATH", smi.path()}, {"CUDA_VISIBLE_DEVICES", "0,1"}});
  EXPECT_EQ(findings.at("gpu 0")["severity"], "warning");
  EXPECT_THAT(findings.at("gpu 0")["text"], HasSubstr("/usr/bin/python3 (pid 4194301)"));
  EXPECT_EQ(findings.at("gpu 1")["severity"], "problem");
  EXPECT_THAT(findings.at("gpu 1")["text"], HasSubstr("3 uncorrected ECC errors"));
}

TEST(DoctorCommand, RejectsInvalidArguments) {
  for (const Words& words :
       {Words{"--port", "0"}, Words{"--ssh", "x"}, Words{"--hosts", "a,me@a"}, Words{"--meeting", "x"}}) {
    const auto result = doctor(words);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr("[lockstep] error: --"));
  }
}

// In place of ssh: runs the command on this host. A host "dead" cannot be reached, on "old" the program is
// missing.
class DoctorHosts : public ::testing::Test {
 protected:
  DoctorHosts() {
    std::ofstream(ssh()) << "#!/bin/sh\n[ \"$1\" = dead ] && { echo 'Connection timed out' >&2; exit 255; }\n"
                            "[ \"$1\" = old ] && exec /nonexistent/lockstep\nshift\nexec sh -c \"$*\"\n";
    fs::permissions(ssh(), fs::perms::owner_all);
  }
  std::string ssh() const { return folder_.file("ssh"); }
  Result ask(const std::string& hosts, Words more = {}) const {
    more.insert(more.end(), {"--hosts", hosts, "--ssh", ssh(), "--port", std::to_string(port_.port())});
    return doctor(more);
  }

 private:
  TempFolder folder_;
  ReservedPort port_;
};

TEST_F(DoctorHosts, ChecksConnectionsBetweenHosts) {
  const auto result = ask("127.0.0.1,me@127.0.0.2", {"--json"});
  const auto document = nlohmann::json::parse(result.out);
  ASSERT_EQ(document["hosts"].size(), 2U);
  int problems = 0;
  for (const auto& host : document["hosts"]) problems += host["report"]["problems"].get<int>();
  EXPECT_EQ(result.code, problems == 0 ? 0 : 1) << result.out << result.err;
  const auto& second = document["hosts"][1];
  EXPECT_EQ(second["name"], "me@127.0.0.2");
  EXPECT_EQ(findings_of(second["report"]).at("host 127.0.0.1")["severity"], "ok");
  EXPECT_EQ(findings_of(document["hosts"][0]["report"]).at("host 127.0.0.2")["severity"], "ok");
  EXPECT_EQ(second["report"]["cores"], usable_cores());
  EXPECT_EQ(document["findings"].size(), 0U) << document["findings"];
}

TEST_F(DoctorHosts, ReportsUnreachableHosts) {
  const auto result = ask("127.0.0.1,dead,old");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              AllOf(ContainsRegex("\n127.0.0.1 \\([^)]*\\) +[0-9]+ "), ContainsRegex("\ndead +- "),
                    HasSubstr("problem  host dead"), HasSubstr("Connection timed out"),
                    HasSubstr("/nonexistent/lockstep"), HasSubstr("run ssh dead")));
}

TEST_F(DoctorHosts, ReportsAMissingProgram) {
  const auto result = ask("127.0.0.1", {"--program", "/nonexistent/lockstep"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("exit code 127"));
}

}  // namespace
}  // namespace lockstep::testing::doctor_test
