// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include <torch/version.h>

#include "base/version.h"

namespace lockstep::rendezvous {

// What all ranks of a run must have in common. They compare it when they arrive.
struct RankTerms {
  int world_size = 1;
  std::string backend{};  // as requested
  std::string lockstep = lockstep_version();
  std::string libtorch = TORCH_VERSION;
};

// One line for each term and one for the rank, which all versions read.
std::string to_text(const RankTerms& terms, int rank);

// Why this rank cannot be in a run with the rank that has written `first`, with both values; empty if it can.
std::string difference(const RankTerms& own, int rank, std::string_view first);

}  // namespace lockstep::rendezvous
