// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/shard_coverage.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include <fmt/ranges.h>

#include "base/throw_error.h"

namespace lockstep::distributed_checkpoint {
namespace {

constexpr std::size_t kMostSplitDimensions = 12;
// Each is 16 bytes.
constexpr std::size_t kMostCorners = std::size_t{1} << 24;
// For the message only, at quadratic cost.
constexpr std::size_t kMostCompared = 4096;

using Dimensions = std::vector<std::size_t>;
// The index of a corner in the grid of all corners. The whole has fewer than 2^63 elements, and one more end
// in each of 12 dimensions at most doubles that.
__extension__ using Corner = unsigned __int128;

Dimensions split_dimensions(const Sizes& whole, const std::vector<Piece>& pieces) {
  Dimensions split;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (std::ranges::any_of(pieces, [&](const Piece& piece) { return piece.sizes[i] != whole[i]; })) {
      split.push_back(i);
    }
  }
  if (split.size() > kMostSplitDimensions) {
    throw_error<CheckpointError>("a tensor is split along {} dimensions; at most {} are supported",
                                 split.size(), kMostSplitDimensions);
  }
  if (pieces.size() >= kMostCorners >> split.size()) {
    throw_error<CheckpointError>(
        "a tensor is split along {} dimensions into {} parts; fewer than {} are supported", split.size(),
        pieces.size(), kMostCorners >> split.size());
  }
  return split;
}

// The signed corners of boxes determine how often the boxes cover each element. They cover the whole exactly
// once if the corners of both signs are equal when the whole is counted negative.
class Corners {
 public:
  Corners(const Sizes& whole, const Dimensions& dimensions, std::size_t boxes) : dimensions_(dimensions) {
    Corner stride = 1;
    for (const auto d : dimensions) {
      strides_.push_back(stride);
      stride *= static_cast<Corner>(whole[d]) + 1;
    }
    for (auto& side : sides_) side.reserve((boxes << dimensions.size()) / 2 + 1);
  }

  void add(const Sizes& offsets, const Sizes& sizes, bool negative) {
    for (std::size_t corner = 0; corner < (std::size_t{1} << dimensions_.size()); ++corner) {
      Corner place = 0;
      bool side = negative;
      for (std::size_t i = 0; i < dimensions_.size(); ++i) {
        const auto d = dimensions_[i];
        const bool end = (corner >> i & 1) != 0;
        place += static_cast<Corner>(offsets[d] + (end ? sizes[d] : 0)) * strides_[i];
        side = side != end;
      }
      sides_[side ? 1 : 0].push_back(place);
    }
  }

  bool cancel() {
    for (auto& side : sides_) std::ranges::sort(side);
    return sides_[0] == sides_[1];
  }

 private:
  const Dimensions& dimensions_;
  std::vector<Corner> strides_;
  std::array<std::vector<Corner>, 2> sides_;
};

std::string shown(const Piece& piece) {
  return fmt::format("[{}] at [{}]", fmt::join(piece.sizes, ", "), fmt::join(piece.offsets, ", "));
}

}  // namespace

std::int64_t element_count(const Sizes& sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) {
    if (__builtin_mul_overflow(count, size, &count))
      throw_error<CheckpointError>("a tensor of shape [{}] is too large", fmt::join(sizes, ", "));
  }
  return count;
}

bool covers(const Sizes& whole, const std::vector<Piece>& pieces) {
  const auto is_empty = [](const Piece& piece) { return element_count(piece.sizes) == 0; };
  if (element_count(whole) == 0) return std::ranges::all_of(pieces, is_empty);
  std::vector<Piece> full;
  std::ranges::remove_copy_if(pieces, std::back_inserter(full), is_empty);
  const auto dimensions = split_dimensions(whole, full);
  Corners corners(whole, dimensions, full.size() + 1);
  corners.add(Sizes(whole.size(), 0), whole, true);
  for (const auto& piece : full) corners.add(piece.offsets, piece.sizes, false);
  return corners.cancel();
}

std::string coverage_problem(const Sizes& whole, const std::vector<Piece>& pieces) {
  const auto compared = std::min(pieces.size(), kMostCompared);
  for (std::size_t i = 0; i < compared; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlap(pieces[i].offsets, pieces[i].sizes, pieces[j])) continue;
      return fmt::format("the parts {} and {} overlap", shown(pieces[j]), shown(pieces[i]));
    }
  }
  std::int64_t there = 0;
  for (const auto& piece : pieces) {
    if (__builtin_add_overflow(there, element_count(piece.sizes), &there)) return "its parts overlap";
  }
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
