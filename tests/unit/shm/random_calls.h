// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

using Numbers = std::vector<std::int32_t>;
using Random = std::mt19937;

Source source(const Numbers& numbers, std::size_t begin, std::size_t count);
Target target(Numbers& numbers, std::size_t begin, std::size_t count);

// The data of a rank in a call.
Numbers values(int rank, int call, std::size_t begin, std::size_t count);

// One call, as all ranks draw it from the same numbers.
struct Drawn {
  Kind kind = Kind::barrier;
  std::size_t count = 0;  // elements of a rank's tensor or part
  int root = 0;
  bool on_heap = false;
};

// Up to one of `most` elements.
Drawn draw(Random& random, int size, const std::vector<std::size_t>& most);

// A rank's part in a call: its buffers, and what must be in them afterwards. Not to be copied.
struct Part {
  Request request = {};
  Numbers input = {};
  Numbers output = {};
  Numbers expected = {};
  std::int32_t* heap = nullptr;

  // Throws if the numbers are wrong.
  void check(int call) const;
};

// Heap memory is taken from `heap_end` on, which is moved.
Part prepare(const Communicator& communicator, const Drawn& drawn, int call, std::size_t& heap_end);

}  // namespace lockstep::shm
