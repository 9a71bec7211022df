// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "doctor/report.h"

namespace lockstep::cli {

struct HostsOptions {
  std::vector<std::string> hosts{};  ///< as the remote shell takes them: name, address or user@name
  std::string ssh{};                 ///< the remote shell's command; empty: ssh, which may ask for nothing
  std::string program{};             ///< of `lockstep` on the hosts; empty: where it is here
  std::optional<int> port{};         ///< to check, and where the hosts try to reach each other
};

struct HostReport {
  std::string host{};   ///< as in HostsOptions
  std::string error{};  ///< why there is no report
  Report report{};
};

/// Throws ArgumentError for no hosts, empty names and names that come twice.
void check_hosts(const std::vector<std::string>& hosts);

/// `lockstep doctor` on all hosts at the same time, each with a deadline.
std::vector<HostReport> ask_hosts(const HostsOptions& options);

/// Hosts that gave no report, and what differs between the others.
Findings compare_hosts(const std::vector<HostReport>& reports);

/// A table of the hosts, their problems and warnings, and `between`: what compare_hosts() found.
std::string hosts_text(const std::vector<HostReport>& reports, const Findings& between,
                       std::optional<std::size_t> width);
nlohmann::json hosts_json(const std::vector<HostReport>& reports, const Findings& between);

}  // namespace lockstep::cli
