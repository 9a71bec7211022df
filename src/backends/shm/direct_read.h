// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/plan.h"

namespace lockstep::shm {

// A reduce-scatter or an all-gather of inputs in the ranks' heaps: each rank reads its peers' inputs where
// they lie and writes its own output. A call ends when all ranks have read, because the caller may then
// change its input.
class DirectRead {
 public:
  // Construct it after all ranks have published call `number`. rows[i]: what rank i has for this one. `plan`
  // is of plan_small() and outlives this object.
  DirectRead(const Communicator& communicator, std::uint64_t number, std::vector<const void*> rows,
             const Plan& plan);

  bool advance();  // as Task::advance()
  // Ranks that have not read yet.
  std::vector<int> awaited() const;

 private:
  void read();
  void reduce();

  const Communicator& communicator_;
  std::uint64_t number_;
  std::vector<const void*> rows_;
  const Plan& plan_;
  bool has_read_ = false;
};

}  // namespace lockstep::shm
