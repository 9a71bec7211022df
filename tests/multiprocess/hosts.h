// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/launcher_process.h"
#include "support/ranks.h"

// Runs on several hosts, which LOCKSTEP_HOST_ID makes of one, or which have networks of their own.
namespace lockstep::testing {

// The same for every call.
inline at::Tensor numbers_of(int rank, std::int64_t count) {
  const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank + 1));
  return torch::randn({count}, generator);
}

// [rank]: number of its host.
inline std::vector<RankResult> run_on_hosts(const Scenario& scenario, const std::vector<int>& host_of,
                                            const std::map<std::string, std::string>& env = {}) {
  const auto size = static_cast<int>(host_of.size());
  RunOptions options{.world_size = size, .env = env, .timeout = std::chrono::seconds(60)};
  for (int rank = 0; rank < size; ++rank) {
    options.rank_env[rank] = {{"GLOO_SOCKET_IFNAME", "lo"},
                              {"LOCKSTEP_HOST_ID", std::to_string(host_of[static_cast<std::size_t>(rank)])}};
  }
  return run_ranks(scenario, options);
}

// On two hosts of two ranks.
inline void run_over_a_cable(const Scenario& scenario) {
  LauncherProcess nodes({"run", "--", "unshare", "-Urn", LOCKSTEP_TWO_NODES, LOCKSTEP_PROGRAM,
                         fmt::format("{}='{}' exec {}", kScenarioVariable, scenario.name(),
                                     std::filesystem::read_symlink("/proc/self/exe").string()),
                         "2"});
  EXPECT_EQ(nodes.finish(), 0) << nodes.err();
  EXPECT_THAT(nodes.err(), ::testing::HasSubstr("backend hierarchical for 4 ranks"));
}

// Bytes that this host has sent to the other one, or to itself over the network.
inline std::int64_t sent_bytes(bool to_itself = false) {
  std::ifstream file("/proc/self/net/dev");
  std::int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    std::array<std::int64_t, 9> numbers{};
    fields >> name;
    for (auto& number : numbers) fields >> number;
    if (fields && (name == "lo:") == to_itself) sum += numbers[8];
  }
  return sum;
}

}  // namespace lockstep::testing
