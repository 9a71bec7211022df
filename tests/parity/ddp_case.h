// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// One training run that both languages make. The Python twin gets the same fields as name=value words.
struct DdpCase {
  std::string name;
  std::string net = "mnist";             // "mnist" or "tied"
  int steps = 100;                       // optimizer steps; unused with `loader`
  int batch_size = 8;                    // samples a micro-step, on each rank
  int micro_steps = 1;                   // backward passes a step, all but the last in no_sync()
  int probe_every = 0;                   // every so many steps one forward without gradients; 0: never
  double bucket_cap_mb = 0;              // 0: the default
  bool gradient_as_bucket_view = false;  // PyTorch's default
  bool set_to_none = true;
  bool seed_by_rank = false;     // weights and dropout differ between ranks until rank 0's weights are sent
  bool gradients_first = false;  // parameters have gradients already when the net is wrapped
  bool loader = false;  // two epochs of a sharded, shuffled data set instead of batches drawn at random
};

std::vector<DdpCase> ddp_cases();

// "name=mnist net=mnist steps=100 ...", for the Python twin.
std::string to_words(const DdpCase& each);

}  // namespace lockstep::testing
