// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// PyTorch's argument `async_op` of a collective. Only false compiles, as its value chooses the type of the result
/// in Python; for true call the function with the suffix `_async`.
class AsyncOp {
 public:
  consteval AsyncOp(bool async_op) {  // NOLINT: implicit
    if (async_op) for_true_call_the_function_with_the_suffix_async();
  }

 private:
  static void for_true_call_the_function_with_the_suffix_async() {}
};

/// A rank that has no default: `{}` does not compile.
class RequiredRank {
 public:
  RequiredRank(int rank) : rank_(rank) {}  // NOLINT: implicit by design
  operator int() const { return rank_; }   // NOLINT: implicit by design

 private:
  int rank_;
};

/// PyTorch's last arguments of a collective. A group converts to it: `all_reduce(tensor, op, group)` is
/// `all_reduce(tensor, op, {.group = group})`.
struct CollectiveOptions {
  std::optional<ProcessGroup> group = {};  ///< default: the default group
  AsyncOp async_op = false;  ///< true does not compile: call the function with the suffix _async
};

inline ProcessGroup::operator CollectiveOptions() const { return {.group = *this}; }

}  // namespace lockstep
