// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdio>
#include <nccl.h>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "board.h"

namespace lockstep::simulated {

using Bytes = std::vector<char>;

struct Reduction {
  ncclRedOp_t op = ncclSum;
  double factor = 1;  // of each value, before
};

std::size_t size_of(ncclDataType_t type);

// `count` values from `offset` bytes on of every rank, reduced in the order of ranks.
Bytes reduce_all(const Board& board, std::size_t count, ncclDataType_t type, const Reduction& reduction,
                 std::size_t offset = 0);

template <typename Act>
void with_type(ncclDataType_t type, const Act& act) {
  switch (type) {
    case ncclInt8:
      return act(std::int8_t{});
    case ncclUint8:
      return act(std::uint8_t{});
    case ncclInt32:
      return act(std::int32_t{});
    case ncclUint32:
      return act(std::uint32_t{});
    case ncclInt64:
      return act(std::int64_t{});
    case ncclUint64:
      return act(std::uint64_t{});
    case ncclFloat16:
      return act(c10::Half{});
    case ncclBfloat16:
      return act(c10::BFloat16{});
    case ncclFloat32:
      return act(float{});
    case ncclFloat64:
      return act(double{});
    default:
      std::fprintf(stderr, "simulated GPU: a type of NCCL is not simulated\n");
  }
}

}  // namespace lockstep::simulated
