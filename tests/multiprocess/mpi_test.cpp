// SPDX-License-Identifier: BSD-3-Clause
// The scenarios of the other backends over MPI, under mpiexec, all of one world size in the same processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "multiprocess/backends.h"
#include "multiprocess/mpi_ranks.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string>;

testing::MpiRun run_over_mpi(const Names& scenarios, int ranks, std::map<std::string, std::string> env = {}) {
  const testing::TempFolder folder;
  env["LOCKSTEP_TEST_FOLDER"] = folder.path().string();
  env[testing::kBackendVariable] = "mpi";
  return testing::run_mpi_ranks(scenarios, {.world_size = ranks, .env = std::move(env)});
}

// In the order in which the tests of the other backends have them.
Names for_any_size() {
  return {"reductions", "copies",        "exchanges",     "async many",
          "async kinds", "async dropped", "objects between all ranks"};
}

Names with(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

TEST(Mpi, TwoRanks) {
  testing::expect_all_passed(
      run_over_mpi(with(for_any_size(), {"bitwise", "complex numbers", "layouts", "async messages"}), 2));
}

TEST(Mpi, ThreeRanks) {
  testing::expect_all_passed(run_over_mpi(
      with(for_any_size(), {"uneven exchange", "objects", "groups main first", "groups main throws"}), 3));
}

TEST(Mpi, FourRanks) {
  testing::expect_all_passed(run_over_mpi(
      with(for_any_size(), {"groups two", "groups outlives", "groups barriers", "async from any rank"}), 4));
}

}  // namespace
}  // namespace lockstep
