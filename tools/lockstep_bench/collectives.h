// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep::bench {

/// Tensors and the call that is timed with them.
struct Trial {
  std::function<void()> rewrite = {};        ///< before each call: this rank's input
  std::function<void()> run = {};            ///< the call
  std::function<std::int64_t()> wrong = {};  ///< after it: elements that are not what they must be
};

struct TrialRequest {
  ProcessGroup group;
  std::int64_t count = 0;  ///< elements of the size that the row stands for
  c10::ScalarType dtype = c10::ScalarType::Float;
  ReduceOp op = ReduceOp::SUM;
  bool inplace = false;  ///< tensors from the backend's allocateTensor()
};

struct Collective {
  std::string name;
  bool reduces = false;
  bool in_parts = false;                       ///< whether `count` is cut into a part for each rank
  std::function<double(int)> bus_factor = {};  ///< busbw / algbw for so many ranks, as in nccl-tests
  std::function<Trial(const TrialRequest&)> prepare = {};
};

/// Throws ArgumentError for a name that is not there.
const Collective& find_collective(const std::string& name);
/// "all-reduce, all-gather, ..."
std::string collective_names();

}  // namespace lockstep::bench
