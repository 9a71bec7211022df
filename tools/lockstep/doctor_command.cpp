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

// Remote shells may take as long to start.
constexpr std::chrono::seconds kMeetingPatience{20};

struct MeetingOutcome {
  std::vector<Peer> peers{};
  Findings findings{};
};

MeetingOutcome hold_meeting(const std::string& text) {
  if (text.empty()) return {};
  const auto meeting = parse_meeting(text);
  try {
    auto peers = meet(meeting, kMeetingPatience);
    auto findings = check_peers(peers, meeting.port);
    return {std::move(peers), std::move(findings)};
  } catch (const Error& error) {
    return {{},
            {problem("other hosts", error.what(), "free this port on the host, or choose one with --port")}};
  }
}

}  // namespace

DoctorCommand::DoctorCommand(CLI::App& app)
    : command_(app.add_subcommand("doctor", "Check this host, or several, before training")) {
  auto& doctor = *command_;
  doctor.add_flag("--json", json_, "As JSON");
  doctor.add_option("--port", port_, "A port that has to be free, as for --master-port")->type_name("PORT");
  doctor.add_option("--hosts", hosts_, "Check these hosts, and whether they reach each other")
      ->type_name("HOST,HOST,...")
      ->delimiter(',');
  doctor
      .add_option("--ssh", ssh_,
                  "The remote shell for --hosts (default: ssh -o BatchMode=yes -o ConnectTimeout=10)")
      ->type_name("COMMAND");
  doctor.add_option("--program", program_, "Where lockstep lies on the hosts (default: where it is here)")
      ->type_name("PATH");
  doctor.add_option("--meeting", meeting_)->group("");
  doctor.footer("The exit code is 0 when there is no problem (warnings may be), else 1.");
}

void DoctorCommand::check_arguments() const {
  if (port_ && (*port_ < 1 || *port_ > 65535)) {
    throw ArgumentError(fmt::format("--port {}: a port lies in 1 .. 65535", *port_));
  }
  if (hosts_.empty() && !(ssh_.empty() && program_.empty())) {
    throw ArgumentError("--ssh and --program say how to reach the hosts of --hosts: give that, too");
  }
  check_hosts(hosts_);
}

int DoctorCommand::run() const {
  check_arguments();
  return hosts_.empty() ? check_this_host() : check_all_hosts();
}

int DoctorCommand::check_this_host() const {
  auto [peers, findings] = hold_meeting(meeting_);
  const auto facts = read_facts(port_);
  const auto own = check_all(facts, Env());
  findings.insert(findings.begin(), own.begin(), own.end());
  const auto report = make_report(facts, std::move(peers), std::move(findings));
  std::cout << (json_ ? report_json(report).dump(2) + '\n' : report_text(report)) << std::flush;
  return count(report.findings, Severity::problem) == 0 ? 0 : 1;
}

int DoctorCommand::check_all_hosts() const {
  const auto reports = ask_hosts({.hosts = hosts_, .ssh = ssh_, .program = program_, .port = port_});
  const auto between = compare_hosts(reports);
  std::cout << (json_ ? hosts_json(reports, between).dump(2) + '\n'
                      : hosts_text(reports, between, terminal_width()))
            << std::flush;
  int problems = count(between, Severity::problem);
  for (const auto& host : reports) problems += count(host.report.findings, Severity::problem);
  return problems == 0 ? 0 : 1;
}

}  // namespace lockstep::cli
