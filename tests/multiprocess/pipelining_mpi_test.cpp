// SPDX-License-Identifier: BSD-3-Clause
// A pipeline over MPI, under mpiexec.
#include <gtest/gtest.h>

#include "multiprocess/backends.h"
#include "support/mpi_ranks.h"

namespace lockstep::testing {
namespace {

TEST(Mpi, Pipeline) {
  expect_all_passed(
      run_mpi_ranks({"pipelining nested values"}, {.world_size = 2, .env = {{kBackendVariable, "mpi"}}}));
}

}  // namespace
}  // namespace lockstep::testing
