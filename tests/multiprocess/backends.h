// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "support/hosts.h"
#include "support/ranks.h"

namespace lockstep::testing {

inline constexpr const char* kBackendVariable = "LOCKSTEP_TEST_BACKEND";

// In a rank: the backend that its test is about.
inline std::string backend_under_test() { return Env().get(kBackendVariable).value_or("gloo"); }

// Ranks that are bound to NUMA nodes. [rank]: its node.
inline std::map<int, std::map<std::string, std::string>> numa_nodes(const std::vector<int>& nodes) {
  std::map<int, std::map<std::string, std::string>> environment;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank)
    environment[static_cast<int>(rank)] = {{"LOCKSTEP_NUMA_NODE", std::to_string(nodes[rank])}};
  return environment;
}

// Tests that every backend passes, at several world sizes.
class EveryBackend : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static void run(const Scenario& scenario, std::map<std::string, std::string> env = {}) {
    const auto& [backend, ranks] = GetParam();
    env[kBackendVariable] = backend_of(backend);
    expect_all_passed(run_ranks(
        scenario, {.world_size = ranks, .env = std::move(env), .rank_env = hosts_of(backend, ranks)}));
  }
};

inline std::string name_of_case(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
}

// Two hosts with so many ranks.
inline auto two_hosts(int first, int second) {
  return ::testing::Values(std::tuple(fmt::format("hierarchical_{}_{}", first, second), first + second));
}

inline auto backends_and_ranks(std::vector<int> ranks) {
  return ::testing::Combine(::testing::Values("gloo", "shm"), ::testing::ValuesIn(ranks));
}

}  // namespace lockstep::testing
