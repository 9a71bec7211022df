// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/base/env.h>

#include "support/ranks.h"

namespace lockstep::testing {

inline constexpr const char* kBackendVariable = "LOCKSTEP_TEST_BACKEND";

// In a rank: the backend that its test is about.
inline std::string backend_under_test() { return Env().get(kBackendVariable).value_or("gloo"); }

// Tests that every backend passes, at several world sizes.
class EveryBackend : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static void run(const Scenario& scenario, std::map<std::string, std::string> env = {}) {
    const auto& [backend, ranks] = GetParam();
    env[kBackendVariable] = backend;
    expect_all_passed(run_ranks(scenario, {.world_size = ranks, .env = std::move(env)}));
  }
};

inline std::string name_of_case(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
}

inline auto backends_and_ranks(std::vector<int> ranks) {
  return ::testing::Combine(::testing::Values("gloo", "shm"), ::testing::ValuesIn(ranks));
}

}  // namespace lockstep::testing
