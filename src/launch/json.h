// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nlohmann/json.hpp>

#include <lockstep/launch/failure_report.h>

namespace lockstep::launch {

nlohmann::json to_json(const FailureReport& report);

/// Throws nlohmann::json::exception for what to_json() has not made.
FailureReport failure_report_from(const nlohmann::json& json);

}  // namespace lockstep::launch
