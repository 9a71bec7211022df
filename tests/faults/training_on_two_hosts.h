// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "faults/training_on_hosts.h"

// elastic_rank under two launchers. LOCKSTEP_HOST_ID makes two hosts of one.
namespace lockstep::testing {

inline constexpr int kHosts = 2;
inline constexpr const char* kSteps = kStepsOnHosts;

class TrainingOnTwoHosts : public TrainingOnHosts {
 public:
  explicit TrainingOnTwoHosts(const std::vector<std::string>& options, int ranks_of_host = 2,
                              const std::string& mode = "",
                              std::chrono::seconds watchdog = std::chrono::seconds(120),
                              const Variables& env = {})
      : TrainingOnHosts({.options = options,
                         .ranks_of_host = ranks_of_host,
                         .mode = mode,
                         .watchdog = watchdog,
                         .env = env}) {}
};

inline std::vector<std::string> with_replacements(int max_restarts, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--on-loss", "replace", "--max-restarts", std::to_string(max_restarts)});
  return more;
}

// The weights of a run without a loss.
inline const std::set<std::string>& calm_on_two_hosts(const std::string& mode = "") {
  static std::map<std::string, std::set<std::string>> weights;
  auto& found = weights[mode];
  if (found.empty()) found = TrainingOnTwoHosts({}, 2, mode).finish();
  return found;
}

}  // namespace lockstep::testing
