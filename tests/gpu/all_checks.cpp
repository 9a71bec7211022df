// SPDX-License-Identifier: BSD-3-Clause
#include "gpu/check.h"

namespace lockstep::gpu {

std::vector<Check> all_checks() {
  std::vector<Check> all;
  for (const auto& part : {device_checks(), training_checks(), checkpoint_checks(), loader_checks(),
                           graph_checks(), ddp_options_checks()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace lockstep::gpu
