// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>

#include "doctor/facts.h"
#include "observe/find_runs.h"

namespace lockstep::cli {

// What `lockstep doctor --report` writes about a run.
struct RunText {
  std::string line{};      // for the terminal: "run of 4 ranks: ...", with the verdict, or "no run: ..."
  std::string sections{};  // of the file
};

// `source`: the PID of a rank or of a process above it, the launcher's --run-id, or a folder of recorder files; empty:
// the only run of this user on this host, if there is one. Throws ArgumentError if it does not name one run, Error for a
// folder without recorder files. A run, or a part of it, that cannot be read is a part of the text.
RunText run_text(const std::string& source);

// The part of run_text() for one run of this host. A section that cannot be read says why.
RunText text_of(const observe::ObservedRun& run);

// Writes the report with mode 0600: versions, checks, devices, environment and `run`, the sections of run_text().
// Values that look like secrets are redacted, and the home folder is "~". Throws Error if it cannot be written.
void write_problem_report(const std::filesystem::path& file, const doctor::Facts& facts,
                          const doctor::Findings& findings, const std::string& run);

}  // namespace lockstep::cli
