// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "doctor/report.h"

namespace lockstep::doctor {

struct HostsOptions {
  std::vector<std::string> hosts{};  // for the remote shell: name, address or user@name
  std::string ssh{};                 // the remote shell's command; empty: ssh without prompts
  std::string program{};             // path of `lockstep` on the hosts; empty: the path on this host
  std::optional<int> port{};         // to check, and for the connections between the hosts
};

struct HostReport {
  std::string host{};   // as in HostsOptions
  std::string error{};  // why there is no report
  Report report{};
};

// Throws ArgumentError for empty and duplicate names.
void check_hosts(const std::vector<std::string>& hosts);

// Runs `lockstep doctor` on all hosts in parallel, each with a deadline.
std::vector<HostReport> ask_hosts(const HostsOptions& options);

// Hosts without a report, and differences between the others.
Findings compare_hosts(const std::vector<HostReport>& reports);

// A table of the hosts, their problems and warnings, and `between`: the result of compare_hosts().
std::string hosts_text(const std::vector<HostReport>& reports, const Findings& between,
                       std::optional<std::size_t> width);
nlohmann::json hosts_json(const std::vector<HostReport>& reports, const Findings& between);

}  // namespace lockstep::doctor
