// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "doctor/facts.h"
#include "doctor/finding.h"
#include "doctor/peers.h"

namespace lockstep::cli {

/// What is told of a host.
struct Report {
  std::string host{};
  std::string lockstep{};
  std::string libtorch{};  ///< empty: unknown
  int cores = 0;
  std::uint64_t memory = 0;  ///< bytes
  int gpus = 0;
  std::vector<Peer> peers{};
  Findings findings{};
};

Report make_report(const Facts& facts, std::vector<Peer> peers, Findings findings);

/// How many have this severity.
int count(const Findings& findings, Severity severity);

/// "2 problems, 1 warning, 14 ok".
std::string summary(const Findings& findings);

/// A line each, and its remedy below; those that are ok only when `all`. `indent`: before each line.
std::string findings_text(const Findings& findings, bool all, const std::string& indent = "");

std::string report_text(const Report& report);
nlohmann::json report_json(const Report& report);
/// What report_json() made. Throws nlohmann::json::exception.
Report parse_report(const nlohmann::json& document);

nlohmann::json findings_json(const Findings& findings);

}  // namespace lockstep::cli
