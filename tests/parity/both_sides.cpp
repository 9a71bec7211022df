// SPDX-License-Identifier: BSD-3-Clause
#include "parity/both_sides.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include <ATen/Parallel.h>

#include <lockstep/spawn/spawn.h>

#include "parity/ddp_record.h"
#include "support/hosts.h"
#include "support/mpi_ranks.h"
#include "support/python.h"

namespace lockstep::testing {
namespace {

constexpr const char* kFolderVariable = "LOCKSTEP_TEST_FOLDER";
constexpr const char* kBackendVariable = "LOCKSTEP_PARITY_BACKEND";
constexpr const char* kThreadsVariable = "LOCKSTEP_PARITY_THREADS";
constexpr const char* kThreadsPrefix = "threads_";
constexpr std::chrono::seconds kWatchdog{120};

std::map<std::string, std::string> environment(const std::filesystem::path& folder,
                                               const std::string& backend, int world_size) {
  std::map<std::string, std::string> env{{kFolderVariable, folder.string()}, {kBackendVariable, backend}};
  if (backend.starts_with(kThreadsPrefix)) {
    env[kBackendVariable] = backend.substr(std::string(kThreadsPrefix).size());
    env[kThreadsVariable] = std::to_string(world_size);
  }
  return env;
}

// The folder with what Python has found. A script runs once for a world size: every backend is compared with
// the same.
const std::filesystem::path& run_python_side(const std::string& script, const std::vector<std::string>& cases,
                                             int world_size) {
  static std::map<std::pair<std::string, int>, std::unique_ptr<TempFolder>> done;
  auto& folder = done[{script, world_size}];
  if (folder) return folder->path();
  auto fresh = std::make_unique<TempFolder>();
  {
    std::ofstream file(fresh->path() / "cases");
    for (const auto& words : cases) file << words << '\n';
  }
  run_python(script, {.args = {fresh->path().string(), std::to_string(world_size)},
                      .env = {{"OMP_NUM_THREADS", "1"}, {"GLOO_SOCKET_IFNAME", "lo"}},
                      .timeout = kWatchdog});
  folder = std::move(fresh);
  return folder->path();
}

}  // namespace

std::string record_folder() { return std::getenv(kFolderVariable); }
std::string parity_backend() { return std::getenv(kBackendVariable); }

void as_parity_ranks(const std::function<void(const Context&)>& body) {
  if (const char* const ranks = std::getenv(kThreadsVariable)) {
    spawn_threads(std::stoi(ranks), body, {.backend = parity_backend(), .threads_per_rank = 1});
    return;
  }
  at::set_num_threads(1);
  body(init({.backend = parity_backend()}));
}

BothSides::BothSides(const std::string& script, const Scenario& scenario,
                     const std::vector<std::string>& cases, const std::string& backend, int world_size)
    : python_(run_python_side(script, cases, world_size)) {
  const RunOptions options{.world_size = backend.starts_with(kThreadsPrefix) ? 1 : world_size,
                           .env = environment(ours_.path(), backend_of(backend), world_size),
                           .rank_env = hosts_of(backend, world_size),
                           .timeout = kWatchdog};
  if (backend == "mpi") {
    expect_all_passed(run_mpi_ranks({scenario.name()}, options));
  } else {
    expect_all_passed(run_ranks(scenario, options));
  }
}

std::string BothSides::python_file(const std::string& name, int rank) const {
  return record_file(python_, name, rank).string();
}

std::string BothSides::our_file(const std::string& name, int rank) const {
  return record_file(ours_.path(), name, rank).string();
}

}  // namespace lockstep::testing
