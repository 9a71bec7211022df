// SPDX-License-Identifier: BSD-3-Clause
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "commands.h"
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

struct DoctorOptions {
  bool json = false;
  std::string meeting{};  // from another doctor, which asks this host among others
  doctor::HostsOptions hosts{};
};

int check_this_host(const DoctorOptions& options) {
  auto [peers, findings] = run_connectivity_test(options.meeting);
  const auto facts = doctor::read_facts(options.hosts.port);
  const auto own = doctor::check_all(facts, Env());
  findings.insert(findings.begin(), own.begin(), own.end());
  const auto report = doctor::make_report(facts, std::move(peers), std::move(findings));
  std::cout << (options.json ? doctor::report_json(report).dump(2) + '\n' : doctor::report_text(report))
            << std::flush;
  return doctor::count(report.findings, doctor::Severity::problem) == 0 ? 0 : 1;
}

int check_all_hosts(const DoctorOptions& options) {
  const auto reports = doctor::ask_hosts(options.hosts);
  const auto between = doctor::compare_hosts(reports);
  std::cout << (options.json ? doctor::hosts_json(reports, between).dump(2) + '\n'
                             : doctor::hosts_text(reports, between, doctor::terminal_width()))
            << std::flush;
  int problems = doctor::count(between, doctor::Severity::problem);
  for (const auto& host : reports) problems += doctor::count(host.report.findings, doctor::Severity::problem);
  return problems == 0 ? 0 : 1;
}

int run_doctor(const DoctorOptions& options) {
  const auto& [hosts, ssh, program, port] = options.hosts;
  if (port && (*port < 1 || *port > 65535)) {
    throw_error<ArgumentError>("--port {}: a port must be in 1 .. 65535", *port);
  }
  if (hosts.empty() && !(ssh.empty() && program.empty())) {
    throw ArgumentError("--ssh and --program need --hosts");
  }
  doctor::check_hosts(hosts);
  return hosts.empty() ? check_this_host(options) : check_all_hosts(options);
}

}  // namespace

Command doctor_command(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  auto& [hosts, ssh, program, port] = options->hosts;
  auto& doctor = *app.add_subcommand("doctor", "Check this host, or several, before training");
  doctor.add_flag("--json", options->json, "Print JSON");
  doctor.add_option("--port", port, "Check that this port is free, as for --master-port")->type_name("PORT");
  doctor.add_option("--hosts", hosts, "Check these hosts, and the connections between them")
      ->type_name("HOST,HOST,...")
      ->delimiter(',');
  doctor.add_option("--ssh", ssh, "Remote shell for --hosts (default: ssh without prompts)")
      ->type_name("COMMAND");
  doctor.add_option("--program", program, "Path of lockstep on the hosts (default: the path on this host)")
      ->type_name("PATH");
  doctor.add_option("--meeting", options->meeting)->group("");
  doctor.footer("The exit code is 0 without problems (warnings are allowed), else 1.");
  return {.app = &doctor, .run = [options](const auto& /*rest*/) { return run_doctor(*options); }};
}

}  // namespace lockstep::cli
