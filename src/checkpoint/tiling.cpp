// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/tiling.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::distributed_checkpoint {
namespace {

constexpr std::size_t kMostSplitDimensions = 12;
// For the message only, which costs the square of it.
constexpr std::size_t kMostCompared = 4096;

using Dimensions = std::vector<std::size_t>;
using Corners = std::map<Sizes, std::int64_t>;

Dimensions split_dimensions(const Sizes& whole, const std::vector<Piece>& pieces) {
  Dimensions split;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (std::ranges::any_of(pieces, [&](const Piece& piece) { return piece.sizes[i] != whole[i]; })) {
      split.push_back(i);
    }
  }
  if (split.size() > kMostSplitDimensions) {
    throw CheckpointError(fmt::format("a tensor is split along {} dimensions; at most {} are supported",
                                      split.size(), kMostSplitDimensions));
  }
  return split;
}

// Each corner with the sign of its side: the sum over boxes tells how often they cover each element.
void add_corners(Corners& corners, const Dimensions& dimensions, const Sizes& offsets, const Sizes& sizes,
                 std::int64_t sign) {
  for (std::size_t corner = 0; corner < (std::size_t{1} << dimensions.size()); ++corner) {
    Sizes at;
    auto own_sign = sign;
    for (std::size_t i = 0; i < dimensions.size(); ++i) {
      const auto d = dimensions[i];
      const bool end = (corner >> i & 1) != 0;
      at.push_back(offsets[d] + (end ? sizes[d] : 0));
      if (end) own_sign = -own_sign;
    }
    corners[std::move(at)] += own_sign;
  }
}

std::string shown(const Piece& piece) {
  return fmt::format("[{}] at [{}]", fmt::join(piece.sizes, ", "), fmt::join(piece.offsets, ", "));
}

}  // namespace

std::int64_t element_count(const Sizes& sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) {
    if (__builtin_mul_overflow(count, size, &count)) {
      throw CheckpointError(fmt::format("a tensor of the sizes [{}] is too large", fmt::join(sizes, ", ")));
    }
  }
  return count;
}

bool is_tiling(const Sizes& whole, const std::vector<Piece>& pieces) {
  const auto is_empty = [](const Piece& piece) { return element_count(piece.sizes) == 0; };
  if (element_count(whole) == 0) return std::ranges::all_of(pieces, is_empty);
  std::vector<Piece> full;
  std::ranges::remove_copy_if(pieces, std::back_inserter(full), is_empty);
  const auto dimensions = split_dimensions(whole, full);
  Corners corners;
  add_corners(corners, dimensions, Sizes(whole.size(), 0), whole, -1);
  for (const auto& piece : full) add_corners(corners, dimensions, piece.offsets, piece.sizes, 1);
  return std::ranges::all_of(corners, [](const auto& corner) { return corner.second == 0; });
}

std::string tiling_problem(const Sizes& whole, const std::vector<Piece>& pieces) {
  const auto compared = std::min(pieces.size(), kMostCompared);
  for (std::size_t i = 0; i < compared; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlap(pieces[i].offsets, pieces[i].sizes, pieces[j])) continue;
      return fmt::format("the parts {} and {} overlap", shown(pieces[j]), shown(pieces[i]));
    }
  }
  std::int64_t there = 0;
  for (const auto& piece : pieces) there += element_count(piece.sizes);
  return fmt::format("its parts have {} of its {} elements", there, element_count(whole));
}

bool overlap(const Sizes& offsets, const Sizes& sizes, const Piece& piece) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (std::max(offsets[i], piece.offsets[i]) >=
        std::min(offsets[i] + sizes[i], piece.offsets[i] + piece.sizes[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::distributed_checkpoint
