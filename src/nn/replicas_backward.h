// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include "nn/replicas.h"

namespace lockstep::nn {

// What a forward on replicas left behind: [i] is replica i's.
struct ReplicasForward {
  std::vector<std::vector<at::Tensor>> inputs;   // its parts of the inputs, leaves of its graph
  std::vector<std::vector<at::Tensor>> outputs;  // the ends of its graph
};

// Makes `gathered`, put together from the outputs, depend on `inputs` and on the original module's
// parameters: its backward runs those of the replicas at the same time.
void record_backward(const std::vector<at::Tensor>& gathered, const std::vector<at::Tensor>& inputs,
                     ReplicasForward forward, std::int64_t dim, std::shared_ptr<Replicas> replicas);

}  // namespace lockstep::nn
