// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/hosts.h"

#include <array>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "doctor/table.h"
#include "machine/command.h"

namespace lockstep::doctor {
namespace {

// Longer than the sum of all deadlines of one host's checks.
constexpr std::chrono::minutes kHostLimit{6};
constexpr int kDefaultPort = 29500;  // torchrun's
constexpr double kMostOffset = 0.1;

using machine::address_part;

ConnectivityTest test_of(const HostsOptions& options) {
  ConnectivityTest test{.token = random_hex(2), .port = options.port.value_or(kDefaultPort)};
  for (const auto& host : options.hosts) test.hosts.push_back(address_part(host));
  return test;
}

std::string remote_command(const HostsOptions& options, const ConnectivityTest& test) {
  auto command =
      fmt::format("{} doctor --json --meeting {}",
                  machine::quoted(options.program.empty() ? own_program().string() : options.program),
                  machine::quoted(to_text(test)));
  if (options.port) command += fmt::format(" --port {}", *options.port);
  return command;
}

// The report has more information than the exit code.
void take_report(const machine::CommandResult& answer, HostReport& host) {
  try {
    host.report = parse_report(nlohmann::json::parse(answer.out));
  } catch (const std::exception& error) {
    host.error = answer.succeeded() ? fmt::format("malformed report: {}", error.what()) : answer.problem;
  }
}

HostReport ask_host(const std::string& host, const HostsOptions& options, const ConnectivityTest& test) {
  auto words = machine::remote_shell(options.ssh);
  words.push_back(host);
  words.push_back(remote_command(options, test));
  HostReport report{.host = host};
  take_report(machine::run_command(words, kHostLimit), report);
  return report;
}

Finding no_report(const HostReport& host) {
  return problem("host " + host.host, "no report: " + host.error,
                 fmt::format("run ssh {} lockstep doctor (needs a key without a passphrase, or an agent, and "
                             "Lockstep at the same path, or --program)",
                             host.host));
}

// [value]: the hosts that have it.
using Groups = std::map<std::string, std::vector<std::string>>;

struct Property {
  const char* name;
  std::string (*of)(const Report& report);
  const char* remedy;
};

constexpr std::array kEqual{
    Property{"Lockstep", [](const Report& report) { return report.lockstep; },
             "install the same version on all hosts"},
    Property{"LibTorch", [](const Report& report) { return report.libtorch; },
             "install the same version on all hosts: results and protocols of other versions may differ"},
    Property{"cores", [](const Report& report) { return std::to_string(report.cores); },
             "every step waits for the slowest host: use equal hosts, or fewer ranks on smaller ones"},
    Property{"GPUs", [](const Report& report) { return std::to_string(report.gpus); },
             "every step waits for the slowest host: use equal hosts"}};

void compare(const std::vector<HostReport>& reports, const Property& property, Findings& findings) {
  Groups groups;
  for (const auto& host : reports) {
    if (host.error.empty()) groups[property.of(host.report)].push_back(host.host);
  }
  if (groups.size() < 2) return;
  std::vector<std::string> parts;
  for (const auto& [value, hosts] : groups) {
    parts.push_back(fmt::format("{} on {}", value.empty() ? "unknown" : value, fmt::join(hosts, ", ")));
  }
  findings.push_back(
      warning(property.name, fmt::format("differs: {}", fmt::join(parts, "; ")), property.remedy));
}

// The first host, as seen from `host`.
std::optional<Peer> first_host_seen_from(const std::vector<HostReport>& reports, const HostReport& host) {
  if (&host == &reports.front() || host.report.peers.empty()) return std::nullopt;
  const auto& peer = host.report.peers.front();
  return peer.offset ? std::optional(peer) : std::nullopt;
}

void compare_clocks(const std::vector<HostReport>& reports, Findings& findings) {
  for (const auto& host : reports) {
    const auto peer = first_host_seen_from(reports, host);
    if (!peer || std::abs(*peer->offset) - peer->uncertainty <= kMostOffset) continue;
    findings.push_back(warning("clocks",
                               fmt::format("{} is {:.1f} s {} {}", host.host, std::abs(*peer->offset),
                                           *peer->offset > 0 ? "behind" : "ahead of", reports.front().host),
                               "run chronyd or systemd-timesyncd on both"));
  }
}

std::string clock_text(const std::vector<HostReport>& reports, const HostReport& host) {
  const auto peer = first_host_seen_from(reports, host);
  if (!peer) return "-";
  return fmt::format("{:+.3f} s", -*peer->offset);
}

std::string host_heading(const HostReport& host) {
  return host.report.host == address_part(host.host) ? host.host
                                                     : fmt::format("{} ({})", host.host, host.report.host);
}

}  // namespace

void check_hosts(const std::vector<std::string>& hosts) {
  std::set<std::string> seen;
  for (const auto& host : hosts) {
    if (host.empty() || host.starts_with('-'))
      throw ArgumentError(
          "--hosts: a name is empty or begins with '-'; separate the names by commas, as in node1,node2");
    if (!seen.insert(address_part(host)).second) {
      throw_error<ArgumentError>("--hosts: {} is listed twice; list each host once", address_part(host));
    }
  }
}

std::vector<HostReport> ask_hosts(const HostsOptions& options) {
  auto test = test_of(options);
  std::vector<std::future<HostReport>> answers;
  for (const auto& host : options.hosts) {
    answers.push_back(start_async("the report of " + host,
                                  [&options, host, test] { return ask_host(host, options, test); }));
    ++test.self;
  }
  std::vector<HostReport> reports;
  for (auto& answer : answers) reports.push_back(answer.get());
  return reports;
}

Findings compare_hosts(const std::vector<HostReport>& reports) {
  Findings findings;
  for (const auto& host : reports) {
    if (!host.error.empty()) findings.push_back(no_report(host));
  }
  for (const auto& property : kEqual) compare(reports, property, findings);
  compare_clocks(reports, findings);
  return findings;
}

std::string hosts_text(const std::vector<HostReport>& reports, const Findings& between,
                       std::optional<std::size_t> width) {
  Table table({{.title = "HOST", .may_shorten = true},
               {.title = "CORES", .right = true},
               {.title = "MEMORY", .right = true},
               {.title = "GPUS", .right = true},
               {.title = "LOCKSTEP"},
               {.title = "LIBTORCH"},
               {.title = "CLOCK", .right = true},
               {.title = "PROBLEMS", .right = true},
               {.title = "WARNINGS", .right = true}});
  std::string details;
  for (const auto& host : reports) {
    const auto& report = host.report;
    if (!host.error.empty()) {
      table.add({host.host, "-", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    table.add({host_heading(host), std::to_string(report.cores), bytes_text(report.memory),
               std::to_string(report.gpus), report.lockstep, report.libtorch.empty() ? "-" : report.libtorch,
               clock_text(reports, host), std::to_string(count(report.findings, Severity::problem)),
               std::to_string(count(report.findings, Severity::warning))});
    const auto text = findings_text(report.findings, /*all=*/false, "  ");
    if (!text.empty()) details += fmt::format("\n{}:\n{}", host_heading(host), text);
  }
  if (!between.empty()) {
    details += fmt::format("\nbetween the hosts:\n{}", findings_text(between, /*all=*/true, "  "));
  }
  return table.text(width) + details;
}

nlohmann::json hosts_json(const std::vector<HostReport>& reports, const Findings& between) {
  auto list = nlohmann::json::array();
  for (const auto& host : reports) {
    nlohmann::json entry{{"name", host.host}, {"error", host.error}, {"report", nullptr}};
    if (host.error.empty()) entry["report"] = report_json(host.report);
    list.push_back(entry);
  }
  return {{"hosts", list}, {"findings", findings_json(between)}};
}

}  // namespace lockstep::doctor
