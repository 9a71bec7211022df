// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

/// What becomes of an exception that leaves a scenario.
enum class Thrown : std::uint8_t {
  fails,        ///< its text is printed, and the process exits with 1
  leaves_main,  ///< nothing catches it, as in a program without a try block
};

/// A function that a test runs in several real processes. Define one at namespace scope beside its test;
/// run_ranks() starts this same test program for each rank, and main() runs the scenario there.
/// A scenario whose gtest expectations fail makes its process exit with 1.
class Scenario {
 public:
  Scenario(std::string name, std::function<void()> body, Thrown thrown = Thrown::fails);
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

struct RunOptions {
  int world_size = 2;
  std::map<std::string, std::string> env = {};  ///< added to every rank's environment; "" unsets
  std::map<int, std::map<std::string, std::string>> rank_env = {};  ///< added to one rank's environment
  std::vector<int> absent = {};                                     ///< ranks that are never started
  std::vector<int> stuck = {};       ///< ranks that never end: killed once the others have ended
  std::chrono::seconds timeout{60};  ///< the watchdog: afterwards all are killed
  std::function<void(const std::vector<int>& pids)> while_running = {};  ///< called once, after the start
};

struct RankResult {
  int exit_code = -1;      ///< -1 when ended by a signal or never started
  int signal = 0;          ///< the signal that ended it, or 0
  bool timed_out = false;  ///< killed by the watchdog
  std::string out;         ///< its stdout
  std::string err;         ///< its stderr
};

/// In a rank's environment: the process whose network namespace it enters.
inline constexpr const char* kNetworkVariable = "LOCKSTEP_TEST_NETWORK";

/// Starts `scenario` in world_size processes with the launcher's environment (MASTER_ADDR, MASTER_PORT,
/// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, OMP_NUM_THREADS=1) and waits for all of them.
/// The children die with this process. They are forks of processes that have loaded LibTorch, unless their
/// environment has variables that a process reads before main().
std::vector<RankResult> run_ranks(const Scenario& scenario, const RunOptions& options = {});

/// Fails the calling test, showing every rank's stderr, unless all ranks exited with 0.
void expect_all_passed(const std::vector<RankResult>& results);

/// In a child that run_ranks() or run_mpi_ranks() started: runs the scenarios and returns the exit code.
/// Otherwise -1.
int run_scenario_if_asked();

/// The scenarios that a child runs, one a line: its name or, if it is to have a port of its own,
/// "<name>|<MASTER_PORT>".
inline constexpr const char* kScenarioVariable = "LOCKSTEP_TEST_SCENARIO";
/// A folder where a child keeps its output and its exit code, in <rank>.out, <rank>.err and <rank>.code.
inline constexpr const char* kOutputVariable = "LOCKSTEP_TEST_OUTPUT";

}  // namespace lockstep::testing
