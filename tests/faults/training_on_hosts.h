// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {

inline constexpr const char* kStepsOnHosts = "300";

// What ranks say of their weights.
inline std::set<std::string> weights_in(const LauncherProcess& launcher) {
  std::set<std::string> digests;
  for (const auto& line : lines_of(launcher.out())) {
    const auto at = line.find("trained ");
    if (at != std::string::npos) digests.insert(line.substr(at));
  }
  return digests;
}

using Variables = std::map<std::string, std::string>;

inline LauncherProcess::Options on_host(int host, std::chrono::seconds watchdog, Variables env = {}) {
  env.merge(Variables{{"LOCKSTEP_HOST_ID", std::to_string(host)},
                      {"GLOO_SOCKET_IFNAME", "lo"},
                      {"LOCKSTEP_SECRET", "the secret of a test"},
                      {"OMP_NUM_THREADS", "1"}});
  return {.env = std::move(env), .watchdog = watchdog};
}

// elastic_rank under a launcher per host. LOCKSTEP_HOST_ID makes hosts of one.
class TrainingOnHosts {
 public:
  struct Options {
    std::vector<std::string> options = {};  // of each launcher
    int hosts = 2;
    int ranks_of_host = 2;
    std::string mode = {};
    std::chrono::seconds watchdog{120};
    Variables env = {};
  };

  explicit TrainingOnHosts(Options options) : options_(std::move(options)) {
    for (int host = 0; host < options_.hosts; ++host) launchers_.push_back(new_launcher(host));
  }

  LauncherProcess& launcher(int host) { return *launchers_.at(static_cast<std::size_t>(host)); }
  int hosts() const { return options_.hosts; }
  std::string err() const {
    std::string text;
    for (std::size_t i = 0; i < launchers_.size(); ++i)
      text += fmt::format("node {}:\n{}", i, launchers_[i]->err());
    return text;
  }

  // Until all ranks train.
  void wait() {
    for (int host = 0; host < hosts(); ++host) launcher(host).wait_for("pid ", options_.ranks_of_host);
  }
  // Until all ranks have made every step but the last one.
  void wait_for_last_step() {
    wait();
    launcher(0).wait_for("waits");
  }

  pid_t rank(int number) { return launcher(number / options_.ranks_of_host).rank_pid(number); }

  // Kills the first process of a launcher, and waits until nothing of it is left.
  void kill_launcher(int host) {
    launcher(host).send(SIGKILL);
    launcher(host).wait_for_no_family();
  }
  std::unique_ptr<LauncherProcess> new_launcher(int host) const {
    return new_launcher(host, options_.ranks_of_host);
  }
  std::unique_ptr<LauncherProcess> new_launcher(int host, int ranks) const {
    return std::make_unique<LauncherProcess>(words(host, ranks),
                                             on_host(host, options_.watchdog, options_.env));
  }
  void start_again(int host) { launchers_.at(static_cast<std::size_t>(host)) = new_launcher(host); }

  // Ranks, and what begins to be one.
  std::vector<pid_t> processes() {
    std::vector<pid_t> found;
    for (int host = 0; host < hosts(); ++host) {
      for (const pid_t pid : launcher(host).family()) {
        std::string name;
        std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
        if (name == "elastic_rank") found.push_back(pid);
      }
    }
    return found;
  }

  void allow_last_step() const { std::ofstream(folder_.path() / "enough").flush(); }

  // `lost`: hosts whose launchers were killed and not started again.
  std::set<std::string> finish(const std::set<int>& lost = {}) {
    allow_last_step();
    std::set<std::string> digests;
    for (int host = 0; host < hosts(); ++host) {
      if (lost.contains(host)) continue;
      EXPECT_EQ(launcher(host).finish(), 0) << err();
      digests.merge(weights_in(launcher(host)));
      launcher(host).wait_for_no_family();
    }
    return digests;
  }

 private:
  std::vector<std::string> words(int host, int ranks) const {
    std::vector<std::string> all{"run",
                                 "--nnodes",
                                 fmt::format("{}", options_.hosts),
                                 "--node-rank",
                                 fmt::format("{}", host),
                                 "--master-port",
                                 port_,
                                 "--nproc-per-node",
                                 fmt::format("{}", ranks)};
    all.insert(all.end(), options_.options.begin(), options_.options.end());
    for (const auto& word : {std::string("--"), std::string(ELASTIC_RANK_PROGRAM), std::string(kStepsOnHosts),
                             folder_.path().string(), options_.mode})
      all.push_back(word);
    return all;
  }

  Options options_;
  TempFolder folder_;
  std::string port_ = free_port();
  std::vector<std::unique_ptr<LauncherProcess>> launchers_;
};

}  // namespace lockstep::testing
