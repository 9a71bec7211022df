// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// One training run with some of DistributedDataParallel's features that both languages make. The Python twin
// gets the same fields as name=value words.
struct FeatureCase {
  std::string name;
  std::string net = "tied";  // see models/ and feature_training.cpp
  int steps = 8;
  std::string batches = "";      // "5,2": so many steps on ranks 0 and 1 (and 2, 3 again), in a join
  int micro_steps = 1;           // backward passes a step, all but the last in no_sync()
  int forwards = 1;              // forwards of which the losses are summed before backward
  double bucket_cap_mb = 0.004;  // 0: the default
  std::string bucket_caps = "";  // "0.002,0.01": the list form
  bool view = false;
  bool set_to_none = true;
  bool find_unused = false;
  bool static_graph = false;
  bool skip_unused = false;
  bool batched = false;
  bool lazy = false;                // buckets; PyTorch's, too, if it has the option
  std::string buffers = "";         // "", "off", "forward_on" or "forward_off"
  std::string checkpoint = "none";  // "none", "plain" or "reentrant"
  std::string hook = "";            // see feature_training.cpp
  std::string delay = "";           // parameter whose reduction is delayed,
  std::string trigger = "";         // until this one's gradient is ready
  std::string ignore = "";          // parameter that is ignored
  bool own_experts = false;         // each rank uses another expert
  bool by_initial_size = true;      // join's divide_by_initial_world_size
  bool stop_early = false;          // join's throw_on_early_termination
  bool in_backward = false;         // the optimizer runs in backward
  int average_every = 0;            // PeriodicModelAverager's period
  double clip = 0;                  // clip_grad_norm_
  int most_ranks = 4;               // largest world size of the comparison
};

std::vector<FeatureCase> feature_cases();

// "name=... net=..."
std::string to_words(const FeatureCase& each);

}  // namespace lockstep::testing
