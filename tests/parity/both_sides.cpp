// SPDX-License-Identifier: BSD-3-Clause
#include "parity/both_sides.h"

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "parity/ddp_record.h"
#include "support/python.h"

namespace lockstep::testing {
namespace {

constexpr const char* kFolderVariable = "LOCKSTEP_TEST_FOLDER";
constexpr const char* kBackendVariable = "LOCKSTEP_PARITY_BACKEND";
constexpr std::chrono::seconds kWatchdog{120};

}  // namespace

std::string record_folder() { return std::getenv(kFolderVariable); }
std::string parity_backend() { return std::getenv(kBackendVariable); }

BothSides::BothSides(const std::string& script, const Scenario& scenario,
                     const std::vector<std::string>& cases, const std::string& backend, int world_size) {
  {
    std::ofstream file(python_.path() / "cases");
    for (const auto& words : cases) file << words << '\n';
  }
  run_python(script, {.args = {python_.path().string(), std::to_string(world_size)},
                      .env = {{"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}},
                      .timeout = kWatchdog});
  expect_all_passed(
      run_ranks(scenario, {.world_size = world_size,
                           .env = {{kFolderVariable, ours_.path().string()}, {kBackendVariable, backend}},
                           .timeout = kWatchdog}));
}

std::string BothSides::python_file(const std::string& name, int rank) const {
  return record_file(python_.path(), name, rank).string();
}

std::string BothSides::our_file(const std::string& name, int rank) const {
  return record_file(ours_.path(), name, rank).string();
}

}  // namespace lockstep::testing
