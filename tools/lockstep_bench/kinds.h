// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench {

// How size and bandwidth of a collective are computed; as in nccl-tests.
struct Kind {
  std::string name;
  bool reduces = false;
  bool in_parts = false;         // the size is the sum of the parts of all ranks
  bool moves_data = true;        // false for the barrier
  double bus_share = 1;          // busbw / algbw = bus_share ...
  bool without_own_part = true;  // ... times (ranks - 1) / ranks, since a rank does not send its own part
};

const std::vector<Kind>& kinds();
// By its name, in which underscores count as hyphens ("all_reduce"). Throws ArgumentError, which lists all names, for an unknown one.
const Kind& find_kind(const std::string& name);
// "all-reduce, all-gather, ..."
std::string kind_names();

double bus_factor(const Kind& kind, int ranks);

// Elements in `bytes`: at least one, and a multiple of the number of ranks for collectives in parts.
std::int64_t element_count(const Kind& kind, std::size_t bytes, std::size_t element_size, int ranks);

// A dtype, without LibTorch.
struct DType {
  std::string name;
  std::size_t size;  // bytes
};
const std::vector<DType>& dtypes();
// Throws ArgumentError, which lists all names, for an unknown name.
const DType& find_dtype(const std::string& name);
std::string dtype_names();

}  // namespace lockstep::bench
