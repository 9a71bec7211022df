// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <source_location>
#include <string>
#include <vector>

// What can be seen only where there is a GPU, as plain programs: no test framework is needed there.
namespace lockstep::gpu {

struct Check {
  std::string name;
  int ranks = 1;     // that must run it
  std::string what;  // verified when it passes
  std::function<void()> run;
  int gpus = 1;  // that are required
};

// The checks that this program runs.
std::vector<Check> all_checks();

std::vector<Check> device_checks();
std::vector<Check> training_checks();
std::vector<Check> checkpoint_checks();
std::vector<Check> loader_checks();
std::vector<Check> graph_checks();
std::vector<Check> ddp_options_checks();
std::vector<Check> parallel_checks();

// Throws, naming the line, unless it holds.
void require(bool holds, const std::string& what,
             std::source_location where = std::source_location::current());

// Throws unless `action` throws an Error whose message has `part`.
void require_error(const std::function<void()>& action, const std::string& part,
                   std::source_location where = std::source_location::current());

}  // namespace lockstep::gpu
