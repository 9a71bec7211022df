// SPDX-License-Identifier: BSD-3-Clause
#include "reduction.h"

#include <cstring>

namespace lockstep::simulated {
namespace {

template <typename T>
T reduce_two(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return a < b ? b : a;
    case ncclMin:
      return b < a ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

template <typename T>
void reduce_as(char* into, const char* from, std::size_t count, const Reduction& reduction) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = reduce_two<T>(a, b, reduction.op);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

template <typename T>
void scale_as(char* values, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, values + i * sizeof(T), sizeof(T));
    value = static_cast<T>(static_cast<float>(factor) * static_cast<float>(value));
    if constexpr (std::is_same_v<T, double>) {
      std::memcpy(&value, values + i * sizeof(T), sizeof(T));
      value *= factor;
    }
    std::memcpy(values + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

Bytes reduce_all(const Board& board, std::size_t count, ncclDataType_t type, const Reduction& reduction,
                 std::size_t offset) {
  const auto bytes = count * size_of(type);
  Bytes result(bytes), other(bytes);
  for (int rank = 0; rank < board.size(); ++rank) {
    auto& into = rank == 0 ? result : other;
    board.read(rank, into.data(), bytes, offset);
    with_type(type, [&](auto value) {
      using T = decltype(value);
      if (reduction.factor != 1) scale_as<T>(into.data(), count, reduction.factor);
      if (rank > 0) reduce_as<T>(result.data(), other.data(), count, reduction);
    });
  }
  if (reduction.op == ncclAvg) {
    with_type(type, [&](auto value) { scale_as<decltype(value)>(result.data(), count, 1.0 / board.size()); });
  }
  return result;
}

}  // namespace lockstep::simulated
