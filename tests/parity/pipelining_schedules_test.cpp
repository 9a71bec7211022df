// SPDX-License-Identifier: BSD-3-Clause
// Plans beside torch.distributed.pipelining's, communication included.
#include <cstdlib>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/pipelining/schedule.h>

#include "support/python.h"

namespace lockstep::testing {
namespace {

using namespace pipelining;

std::string text_of(const Plan& plan) {
  auto csv = to_csv(plan);
  std::erase(csv, '\r');
  return csv;
}

// plans() of pipelining_schedules.py.
std::string our_text(const std::string& name, int ranks, int local_stages, int microbatches) {
  try {
    const auto plan = make_plan(name, ranks, local_stages, microbatches);
    const auto comms = add_comms(plan);
    simulate(plan);
    simulate(comms);
    return text_of(plan) + "comms\n" + text_of(comms);
  } catch (const ArgumentError&) {
    return "refused\n";
  }
}

TEST(PipeliningSchedulesParity, ActionsAndCommunication) {
  const bool full = std::getenv("LOCKSTEP_PIPELINING_GRID") != nullptr;
  const std::vector<std::string> grid =
      full ? std::vector<
                 std::string>{"1,2,3,4,5,6,7,8", "1,2,3,4",
                              "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,"
                              "28,29,30,31,32"}
           : std::vector<std::string>{"1,2,3,4", "1,2,3", "1,2,5,8,12"};
  std::istringstream python(run_python("parity/pipelining_schedules.py",
                                       {.args = grid, .timeout = std::chrono::seconds(full ? 1000 : 100)}));
  std::map<std::string, std::string> cases;
  for (std::string line, name; std::getline(python, line);) {
    if (line.starts_with("case ")) name = line.substr(5);
    if (!line.starts_with("case ")) cases[name] += line + "\n";
  }
  ASSERT_EQ(cases.size(), full ? 7 * 8 * 4 * 32 : 7 * 4 * 3 * 5);
  int accepted = 0;
  for (const auto& [name, expected] : cases) {
    std::istringstream words(name);
    std::string schedule;
    int ranks = 0, local_stages = 0, microbatches = 0;
    words >> schedule >> ranks >> local_stages >> microbatches;
    ASSERT_EQ(our_text(schedule, ranks, local_stages, microbatches), expected) << name;
    accepted += expected == "refused\n" ? 0 : 1;
  }
  EXPECT_GT(accepted, 150);
}

}  // namespace
}  // namespace lockstep::testing
