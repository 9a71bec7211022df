// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "doctor/facts.h"
#include "doctor/peers.h"

namespace lockstep::doctor {

// The result of the checks on one host.
struct Report {
  std::string host{};
  std::string lockstep{};
  std::string libtorch{};  // empty: unknown
  int cores = 0;
  std::uint64_t memory = 0;  // bytes
  int gpus = 0;
  std::vector<Peer> peers{};
  Findings findings{};
};

Report make_report(const Facts& facts, std::vector<Peer> peers, Findings findings);

// The number of findings with this severity.
int count(const Findings& findings, Severity severity);

// "2 problems, 1 warning, 14 ok".
std::string summary(const Findings& findings);

// One line per finding and its remedy below. `all`: also findings that are ok. `indent`: before each line.
std::string findings_text(const Findings& findings, bool all, const std::string& indent = "");

std::string report_text(const Report& report);
nlohmann::json report_json(const Report& report);
// Reverses report_json(). Throws nlohmann::json::exception.
Report parse_report(const nlohmann::json& document);

nlohmann::json findings_json(const Findings& findings);

}  // namespace lockstep::doctor
