// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

#include "doctor/facts.h"

namespace lockstep::cli {

// What `lockstep doctor --report` writes about a run. `source`: the PID of a rank or of a process above it, the
// launcher's --run-id, or a folder of recorder files; empty: the only run of this user on this host, if there is one.
// Throws ArgumentError if it does not name one run, Error for a folder without recorder files. A run that cannot be read
// is a part of the text.
std::string run_text(const std::string& source);

// Writes the report with mode 0600: versions, checks, devices, environment and `run`, the text of run_text(). Values
// that look like secrets are redacted, and the home folder is "~". Throws Error if it cannot be written.
void write_problem_report(const std::filesystem::path& file, const doctor::Facts& facts,
                          const doctor::Findings& findings, const std::string& run);

}  // namespace lockstep::cli
