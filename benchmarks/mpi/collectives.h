// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// MPI's form of each collective that `lockstep bench` times, on float32.
namespace mpi_bench {

struct World {
  int rank = 0;
  int size = 1;
  bool by_clock = false;  ///< see lockstep::bench::start_together()
};

using Buffer = std::vector<float>;

struct Case {
  std::string memory =
      "ordinary";                ///< separate: one buffer in, another out, where `ordinary` has one for both
  std::size_t input_count = 0;   ///< elements that this rank gives; rewritten before each call
  std::size_t output_count = 0;  ///< elements that it gets; 0: the call works on the input
  std::function<void(Buffer& input, Buffer& output)> run = {};
  /// What this rank gets at an index; none where that does not matter.
  std::function<std::int64_t(std::size_t)> expected = {};
};

/// The ways of doing `collective` with rows of `count` elements. The name is one of lockstep::bench::kinds().
std::vector<Case> cases_of(const std::string& collective, const World& world, std::size_t count);

}  // namespace mpi_bench
