// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/unique_fd.h"
#include "launch/log_files.h"
#include "machine/command.h"

namespace lockstep::launch {

// Note [Spares]
//
// A spare is a process of the program that has been started before a rank needs it. It has the environment of a rank
// without the numbers of one. lockstep::init() in it reads the pipe that kVariable names:
//
//   "RANK LOCAL_RANK RESTARTS\n"  it is this rank from now on; RESTARTS is its TORCHELASTIC_RESTART_COUNT
//   the end of the pipe           it is not needed, and exits with 0
//
// Nobody reads its output before it is a rank; the pipes keep what it has written.
struct Spare {
  static constexpr const char* kVariable = "LOCKSTEP_SPARE";

  // Starts it. `environment`: spare_environment(). Throws ProgramError or LaunchError.
  static Spare start(const std::string& file, const std::vector<std::string>& arguments,
                     std::map<std::string, std::string> environment);

  // Binds it to `cpus`, unless there are none, and makes it that rank. False if it has ended, or does not read its
  // pipe any more: it is killed then.
  bool become(int rank, int local_rank, int restarts, const std::vector<int>& cpus) const;

  ErrorRecord record{};
  UniqueFd orders{};  // the write end; closed: it is not needed
  machine::RunningProgram process{};
};

}  // namespace lockstep::launch
