// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

namespace lockstep {

/// The operation that combines the tensors of several ranks. PyTorch: `torch.distributed.ReduceOp`.
enum class ReduceOp : std::uint8_t {
  SUM,      ///< the sum
  AVG,      ///< the sum divided by the number of ranks; floating point and complex only
  PRODUCT,  ///< the product
  MIN,      ///< not complex
  MAX,      ///< not complex
  BAND,     ///< bitwise and; integers and bool only
  BOR,      ///< bitwise or; integers and bool only
  BXOR,     ///< bitwise exclusive or; integers and bool only
};

/// "SUM", "AVG", ...
std::string_view name_of(ReduceOp op);

/// The function of a process group that was called.
enum class CallKind : std::uint8_t {
  all_reduce,              ///< ProcessGroup::all_reduce()
  broadcast,               ///< ProcessGroup::broadcast()
  reduce,                  ///< ProcessGroup::reduce()
  all_gather,              ///< ProcessGroup::all_gather()
  all_gather_into_tensor,  ///< ProcessGroup::all_gather_into_tensor()
  gather,                  ///< ProcessGroup::gather()
  scatter,                 ///< ProcessGroup::scatter()
  reduce_scatter,          ///< ProcessGroup::reduce_scatter()
  reduce_scatter_tensor,   ///< ProcessGroup::reduce_scatter_tensor()
  all_to_all,              ///< ProcessGroup::all_to_all()
  all_to_all_single,       ///< ProcessGroup::all_to_all_single()
  send,                    ///< ProcessGroup::send()
  recv,                    ///< ProcessGroup::recv()
  barrier,                 ///< ProcessGroup::barrier()
};

/// "all_reduce", "broadcast", ...
std::string_view name_of(CallKind kind);

/// The state of a call: running, or how it ended.
enum class CallState : std::uint8_t {
  issued,     ///< not ended yet
  completed,  ///< ended without an error
  failed,     ///< ended with an error
};

/// One call on a process group: its arguments, its source line and its state.
struct CallRecord {
  std::uint64_t number = 0;  ///< 1, 2, ... in the order of issue on this rank; equal on all ranks that agree
  CallKind kind = CallKind::barrier;                   ///< which function was called
  c10::ScalarType dtype = c10::ScalarType::Undefined;  ///< Undefined for a barrier
  c10::DimVector shape = {};                           ///< of this rank's (first) tensor
  std::optional<ReduceOp> op = {};                     ///< of calls that reduce
  int root = -1;                    ///< src or dst of calls that have one for all ranks, else -1
  std::source_location where = {};  ///< the line of the program
  std::string_view contents = {};   ///< what the tensors of a call of Lockstep's are: "gradients of bucket"
  int index = -1;                   ///< of the contents, or -1
  /// When the call was made. For sends and receives, the resolution is a system tick (a few milliseconds).
  std::chrono::steady_clock::time_point issued_at = {};
  CallState state = CallState::issued;  ///< running, or how it ended

  /// "all_reduce #12 of Float[64, 1, 3, 3] at train.cpp:40 (gradients of bucket 2)"
  std::string describe() const;
};

}  // namespace lockstep
