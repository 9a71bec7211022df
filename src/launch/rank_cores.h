// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/launch/options.h>

namespace lockstep::launch {

/// How this node's ranks share its cores.
class RankCores {
 public:
  explicit RankCores(const LaunchOptions& options);

  /// The CPUs that the rank is bound to; empty: not bound.
  const std::vector<int>& cpus(int local_rank) const {
    return cpus_.at(static_cast<std::size_t>(local_rank));
  }
  /// Threads for the rank's operators.
  int threads(int local_rank) const;

 private:
  std::vector<std::vector<int>> cpus_;
  int share_;  // of the cores that may really be used
};

}  // namespace lockstep::launch
