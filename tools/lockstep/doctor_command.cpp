// SPDX-License-Identifier: BSD-3-Clause
#include "doctor_command.h"

#include <iostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "doctor/checks.h"
#include "doctor/hosts.h"
#include "doctor/peers.h"
#include "doctor/report.h"
#include "doctor/table.h"

namespace lockstep::cli {
namespace {

// Remote shells may be slow to start.
constexpr std::chrono::seconds kConnectivityLimit{20};

struct ConnectivityResult {
  std::vector<doctor::Peer> peers{};
  doctor::Findings findings{};
};

ConnectivityResult run_connectivity_test(const std::string& text) {
  if (text.empty()) return {};
  const auto test = doctor::parse_connectivity_test(text);
  try {
    auto peers = doctor::test_connectivity(test, kConnectivityLimit);
    auto findings = doctor::check_peers(peers, test.port);
    return {std::move(peers), std::move(findings)};
  } catch (const Error& error) {
    return {{},
            {doctor::problem("other hosts", error.what(),
                             "free this port on the host, or choose another with --port")}};
  }
}

}  // namespace

DoctorCommand::DoctorCommand(CLI::App& app)
    : command_(app.add_subcommand("doctor", "Check this host, or several, before training")) {
  auto& doctor = *command_;
  doctor.add_flag("--json", json_, "Print JSON");
  doctor.add_option("--port", port_, "Check that this port is free, as for --master-port")->type_name("PORT");
  doctor.add_option("--hosts", hosts_, "Check these hosts, and the connections between them")
      ->type_name("HOST,HOST,...")
      ->delimiter(',');
  doctor
      .add_option("--ssh", ssh_,
                  "Remote shell for --hosts (default: ssh -o BatchMode=yes -o ConnectTimeout=10)")
      ->type_name("COMMAND");
  doctor.add_option("--program", program_, "Path of lockstep on the hosts (default: the path on this host)")
      ->type_name("PATH");
  doctor.add_option("--meeting", meeting_)->group("");
  doctor.footer("The exit code is 0 without problems (warnings are allowed), else 1.");
}

void DoctorCommand::check_arguments() const {
  if (port_ && (*port_ < 1 || *port_ > 65535)) {
    throw ArgumentError(fmt::format("--port {}: a port must be in 1 .. 65535", *port_));
  }
  if (hosts_.empty() && !(ssh_.empty() && program_.empty())) {
    throw ArgumentError("--ssh and --program need --hosts");
  }
  doctor::check_hosts(hosts_);
}

int DoctorCommand::run() const {
  check_arguments();
  return hosts_.empty() ? check_this_host() : check_all_hosts();
}

int DoctorCommand::check_this_host() const {
  auto [peers, findings] = run_connectivity_test(meeting_);
  const auto facts = doctor::read_facts(port_);
  const auto own = doctor::check_all(facts, Env());
  findings.insert(findings.begin(), own.begin(), own.end());
  const auto report = doctor::make_report(facts, std::move(peers), std::move(findings));
  std::cout << (json_ ? doctor::report_json(report).dump(2) + '\n' : doctor::report_text(report))
            << std::flush;
  return doctor::count(report.findings, doctor::Severity::problem) == 0 ? 0 : 1;
}

int DoctorCommand::check_all_hosts() const {
  const auto reports = doctor::ask_hosts({.hosts = hosts_, .ssh = ssh_, .program = program_, .port = port_});
  const auto between = doctor::compare_hosts(reports);
  std::cout << (json_ ? doctor::hosts_json(reports, between).dump(2) + '\n'
                      : doctor::hosts_text(reports, between, doctor::terminal_width()))
            << std::flush;
  int problems = doctor::count(between, doctor::Severity::problem);
  for (const auto& host : reports) problems += doctor::count(host.report.findings, doctor::Severity::problem);
  return problems == 0 ? 0 : 1;
}

}  // namespace lockstep::cli
