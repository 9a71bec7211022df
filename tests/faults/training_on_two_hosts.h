// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"
#include "support/temp_folder.h"

// elastic_rank under two launchers. LOCKSTEP_HOST_ID makes two hosts of one.
namespace lockstep::testing {

inline constexpr int kHosts = 2;
inline constexpr const char* kSteps = "300";

using Variables = std::map<std::string, std::string>;

inline LauncherProcess::Options on_host(int host, std::chrono::seconds watchdog, Variables env = {}) {
  env.merge(Variables{{"LOCKSTEP_HOST_ID", std::to_string(host)},
                      {"GLOO_SOCKET_IFNAME", "lo"},
                      {"LOCKSTEP_SECRET", "the secret of a test"},
                      {"OMP_NUM_THREADS", "1"}});
  return {.env = std::move(env), .watchdog = watchdog};
}

// What ranks say of their weights.
inline std::set<std::string> weights_in(const LauncherProcess& launcher) {
  std::set<std::string> digests;
  for (const auto& line : lines_of(launcher.out())) {
    const auto at = line.find("trained ");
    if (at != std::string::npos) digests.insert(line.substr(at));
  }
  return digests;
}

class TrainingOnTwoHosts {
 public:
  explicit TrainingOnTwoHosts(const std::vector<std::string>& options, int ranks_of_host = 2,
                              const std::string& mode = "",
                              std::chrono::seconds watchdog = std::chrono::seconds(120),
                              const Variables& env = {})
      : ranks_of_host_(ranks_of_host),
        first_(words(0, options, mode), on_host(0, watchdog, env)),
        second_(words(1, options, mode), on_host(1, watchdog, env)) {}

  LauncherProcess& launcher(int host) { return host == 0 ? first_ : second_; }
  std::string err() const { return "node 0:\n" + first_.err() + "node 1:\n" + second_.err(); }

  // Until all ranks train.
  void wait() {
    for (int host = 0; host < kHosts; ++host) launcher(host).wait_for("pid ", ranks_of_host_);
  }
  // Until all ranks have made every step but the last one.
  void wait_for_last_step() {
    wait();
    first_.wait_for("waits");
  }

  pid_t rank(int number) {
    const int host = number / ranks_of_host_;
    return launcher(host).rank_pid(number);
  }

  // Ranks, and what begins to be one.
  std::vector<pid_t> processes() {
    std::vector<pid_t> found;
    for (int host = 0; host < kHosts; ++host) {
      for (const pid_t pid : launcher(host).family()) {
        std::string name;
        std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
        if (name == "elastic_rank") found.push_back(pid);
      }
    }
    return found;
  }

  std::set<std::string> finish() {
    std::ofstream(folder_.path() / "enough").flush();
    std::set<std::string> digests;
    for (int host = 0; host < kHosts; ++host) {
      EXPECT_EQ(launcher(host).finish(), 0) << err();
      digests.merge(weights_in(launcher(host)));
      launcher(host).wait_for_no_family();
    }
    return digests;
  }

 private:
  std::vector<std::string> words(int host, const std::vector<std::string>& options,
                                 const std::string& mode) const {
    std::vector<std::string> all{"run",
                                 "--nnodes",
                                 "2",
                                 "--node-rank",
                                 fmt::format("{}", host),
                                 "--master-port",
                                 port_,
                                 "--nproc-per-node",
                                 fmt::format("{}", ranks_of_host_)};
    all.insert(all.end(), options.begin(), options.end());
    for (const auto& word : {std::string("--"), std::string(ELASTIC_RANK_PROGRAM), std::string(kSteps),
                             folder_.path().string(), mode})
      all.push_back(word);
    return all;
  }

  TempFolder folder_;
  std::string port_ = free_port();
  int ranks_of_host_;
  LauncherProcess first_;
  LauncherProcess second_;
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
