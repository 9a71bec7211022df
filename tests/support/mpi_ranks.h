// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace lockstep::testing {

struct MpiRun {
  int exit_code = -1;                  ///< of mpiexec; -signal when one ended it
  std::string err;                     ///< of mpiexec itself
  std::vector<RankResult> ranks = {};  ///< exit_code is -1 for a rank that did not return from its scenarios
};

/// Runs the scenarios of these names one after the other, each rank in one process that mpiexec starts.
/// Of `options` it uses world_size, env, rank_env and timeout.
/// LOCKSTEP_TEST_MPIEXEC names an mpiexec to use in place of that of the build.
MpiRun run_mpi_ranks(const std::vector<std::string>& scenarios, const RunOptions& options,
                     const std::vector<std::string>& mpiexec_options = {});

/// Whether that mpiexec is of Open MPI 5, which has options that Open MPI 4 does not know, and the reverse.
bool is_open_mpi_5();

/// Fails the calling test, showing every rank's output, unless all ranks and mpiexec exited with 0.
void expect_all_passed(const MpiRun& run);

}  // namespace lockstep::testing
