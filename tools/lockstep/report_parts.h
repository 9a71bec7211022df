// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "observe/report/page.h"

// What the reports of `lockstep run` and of `lockstep doctor` have in common.

namespace lockstep::cli {

// Throws ArgumentError, which names --report, if the file could not be written.
void require_report_file(const std::filesystem::path& file);

// "2026-11-28 21:50:51 +0000", of seconds since 1970.
std::string local_time(double seconds);

// The environment of this process, NAME=VALUE.
std::vector<std::string> own_variables();

// Versions of the software and the resources of this host. `libtorch`: its version; empty: not known.
observe::Facts report_facts(const std::string& libtorch);

}  // namespace lockstep::cli
