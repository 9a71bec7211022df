// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench {

/// What a row's size and bandwidth mean for a collective; both as in nccl-tests.
struct Kind {
  std::string name;
  bool reduces = false;
  bool in_parts = false;         ///< whether the size is that of one part for each rank, all together
  bool moves_data = true;        ///< false: the barrier, which has no size
  double bus_share = 1;          ///< busbw / algbw = bus_share, ...
  bool without_own_part = true;  ///< ... times (ranks - 1) / ranks, since a rank's own part stays where it is
};

const std::vector<Kind>& kinds();
/// Throws ArgumentError, listing all, for a name that is not there.
const Kind& find_kind(const std::string& name);
/// "all-reduce, all-gather, ..."
std::string kind_names();

double bus_factor(const Kind& kind, int ranks);

/// Elements of a row of `bytes`: at least one, and as many for each rank where it is cut into parts.
std::int64_t element_count(const Kind& kind, std::size_t bytes, std::size_t element_size, int ranks);

/// A type that every tool here can name, without LibTorch.
struct DType {
  std::string name;
  std::size_t size;  ///< bytes
};
const std::vector<DType>& dtypes();
/// Throws ArgumentError, listing all, for a name that is not there.
const DType& find_dtype(const std::string& name);
std::string dtype_names();

}  // namespace lockstep::bench
