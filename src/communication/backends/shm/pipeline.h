// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/plan.h"

namespace lockstep::shm {

// Moves data of any size through staging buffers that stay in the cache, chunk by chunk: each chunk is
// staged, reduced if the plan requires it, and taken; several chunks are in progress at once.
//
// Counters continue from call to call, so that they need no reset: `start` is the value of all ranks'
// counters after the earlier calls.
class Pipeline {
 public:
  Pipeline(const Communicator& communicator, Plan plan, std::uint64_t start, std::uint64_t chunks,
           std::size_t piece_bytes);

  // Bytes of a portion in one chunk.
  static std::size_t piece_bytes(std::size_t portions);

  bool advance();  // as Task::advance()
  // Ranks that have not advanced as far as this one needs.
  std::vector<int> awaited() const;

 private:
  bool try_stage();
  bool try_combine();
  bool try_take();
  bool all_reached(Counter ControlBlock::*counter, std::uint64_t value) const;

  std::byte* portion(int rank, std::uint64_t chunk, std::size_t portion) const;
  std::size_t piece_of(std::size_t bytes, std::uint64_t chunk) const;

  const Communicator& communicator_;
  Plan plan_;
  std::uint64_t start_;
  std::uint64_t end_;
  std::size_t piece_;
  std::uint64_t staged_;
  std::uint64_t combined_;
  std::uint64_t taken_;
};

}  // namespace lockstep::shm
