// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/fsdp/memory_report.h>

#include "lockstep_plan/machine.h"
#include "lockstep_plan/model.h"

namespace lockstep::plan {

struct Job {
  int ranks = 1;
  int batch_size = 1;                              // samples of a step, of all replicas
  std::optional<int> microbatches = std::nullopt;  // of a replica; default: the fastest
  int heads = 1;                                   // a multiple of the tensor parallel ranks
  int positions = 1;              // of a sample: 1, or a multiple of 2 * the context parallel ranks
  int optimizer_states = 2;       // as in MemoryPlan
  std::string schedule = "1F1B";  // of make_plan(), with one stage a rank
};

// Note [Time of a step]
//
// compute      flops of the layers, of which tensor parallel ranks share those that can be cut, and the start
// of
//              each layer for each micro-batch
// tensor       all-reduces of these layers' outputs, in forward and backward
// context      keys and values that pass around the ranks in forward and backward, and their gradients
// expert       all-to-alls of tokens and results, in forward and backward
// pipeline     idle time of the simulated schedule, with a message of the largest output between stages
// data         reduction of the gradients of the stage with the most, and gathering of its parameters if they
//              are gathered; nothing overlaps with it. That of experts over "dp" and "cp", of the rest over
//              "dp", "ep" and "cp".
//
// The ranks of the mesh are in the order of its dimensions "dp", "pp", "ep", "cp", "tp", so the last are
// neighbours. A group that lies on H hosts, k ranks on each, reduces on each host and then between the hosts;
// all groups of a host share its network.

struct Choice {
  int dp = 1, pp = 1, ep = 1, cp = 1, tp = 1;
  ShardingForm form = ShardingForm::ddp;
  int microbatches = 1;
  double step = 0;     // seconds
  double compute = 0;  // of a rank, mean
  double tensor = 0, context = 0, expert = 0;
  double pipeline = 0;  // idle
  double data = 0;
  MemoryBytes rank = {};  // of the stage with the most
  std::int64_t host = 0;  // bytes, if all its ranks are of that stage
  bool fits = false;
};

// All meshes that the model can be cut for; those that fit first, then by time. Throws ArgumentError if there
// are none, and for ranks that leave a host partly empty beside full ones.
std::vector<Choice> plan_meshes(const std::vector<Layer>& layers, const Machine& machine, const Job& job);

}  // namespace lockstep::plan
