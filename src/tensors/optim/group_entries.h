// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep::optim {

// What Python's schedulers add to the param_groups of their optimizer, such as "initial_lr". LibTorch's
// options have no place for it, so the schedulers of an optimizer share it, as long as one of them lives. No
// scheduler outlives its optimizer, so the optimizer's address identifies it in that time.
struct GroupEntries {
  std::vector<std::map<std::string, double>> groups;
  // Of ZeroRedundancyOptimizer: why the states are not all on this rank, and what to do; else empty.
  std::string incomplete;
  // Of ZeroRedundancyOptimizer: gives rank 0 of its group all states; collective.
  std::function<void()> consolidate;
  // Of ZeroRedundancyOptimizer::share_parameters(): how many ranks share the parameters, and which of them
  // this rank owns, by their implementations.
  int sharing_ranks = 1;
  std::unordered_map<const void*, bool> shared_parameters;
};

// The entries that the living schedulers of the optimizer share; new ones if there are none. Any thread.
std::shared_ptr<GroupEntries> shared_entries(const torch::optim::Optimizer& optimizer);

// Add the entries of group `index` to its state dict, and replace those that the dict has. Without schedulers
// there are none.
void write_entries(const torch::optim::Optimizer& optimizer, std::size_t index, Dict& group);
void read_entries(const torch::optim::Optimizer& optimizer, std::size_t index, const Dict& group);

// Throws ArgumentError if this rank does not have the states of all parameters.
void check_complete(const torch::optim::Optimizer& optimizer);

// Gives rank 0 the states of all ranks, if they are distributed; returns whether they are. Collective then.
bool consolidate(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
