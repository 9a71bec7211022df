// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <lockstep/comm/backend.h>
#include <lockstep/node/call_record.h>

#include "observe/call_names.h"

// Note [One call path]
//
// Every collective and message takes this path:
//
//   ProcessGroup          describes the call: one Call
//   CallRules::check()    checks its arguments, once
//   pending_call.cpp      numbers it, records it, hands it to the group's CallBackend
//   CallBackend::start()  completes it (the eager path of shm) or returns an Operation to wait for
//
// c10d is at both edges. ToC10d makes a CallBackend of any c10d::Backend (Gloo, NCCL, a third-party one).
// FromC10d makes a c10d::Backend of a CallBackend, for callers that use c10d (LibTorch, Python).

namespace lockstep::comm {

// The peer of a receive from any rank.
inline constexpr int kAnyRank = std::numeric_limits<int>::min();

// One call on a process group. The tensors belong to the caller; a backend that continues the call after
// start() copies them.
struct Call {
  CallKind kind = CallKind::barrier;
  at::TensorList inputs = {};
  at::TensorList parts = {};            // of a coalesced call: what the caller passed, for the profiler
  at::TensorList outputs = {};          // also the tensor of an in-place call
  ReduceOp op = ReduceOp::SUM;          // of the reducing kinds
  int root = -1;                        // of the rooted kinds
  int peer = kAnyRank;                  // of send and recv
  int tag = 0;                          // of send and recv
  c10::IntArrayRef output_splits = {};  // of all_to_all_single: rows for each rank; empty: equal parts
  c10::IntArrayRef input_splits = {};
  bool blocking = false;                           // the caller waits for the end immediately
  bool monitored = false;                          // a monitored_barrier
  bool wait_all_ranks = false;                     // of a monitored_barrier
  std::chrono::milliseconds timeout = kNoTimeout;  // kNoTimeout: the backend's
  std::uint64_t whole = 0;   // the fingerprint of the call that this one is a part of; 0: of none
  std::uint64_t number = 0;  // in the group's flight recorder; 0: not recorded
  std::source_location where = {};
};

constexpr bool is_message(CallKind kind) { return kind == CallKind::send || kind == CallKind::recv; }

constexpr bool has_operation(CallKind kind) {
  return kind == CallKind::all_reduce || kind == CallKind::reduce || kind == CallKind::reduce_scatter ||
         kind == CallKind::reduce_scatter_tensor;
}

constexpr bool has_root(CallKind kind) {
  return kind == CallKind::broadcast || kind == CallKind::reduce || kind == CallKind::gather ||
         kind == CallKind::scatter;
}

// Whether the outputs are one tensor for each rank.
constexpr bool has_output_list(CallKind kind) {
  return kind == CallKind::all_gather || kind == CallKind::gather || kind == CallKind::all_to_all;
}

// Whether the inputs are one tensor for each rank.
constexpr bool has_input_list(CallKind kind) {
  return kind == CallKind::scatter || kind == CallKind::reduce_scatter || kind == CallKind::all_to_all;
}

// Whether tensors may differ in shape from rank to rank.
constexpr bool is_uneven(CallKind kind) { return observe::kUnevenCalls.at(static_cast<std::size_t>(kind)); }

// The tensor whose dtype and shape describe the call; nullptr for a barrier.
inline const at::Tensor* main_tensor(const Call& call) {
  const bool by_input =
      is_uneven(call.kind) || call.kind == CallKind::all_gather_into_tensor || call.kind == CallKind::send;
  const auto& tensors = by_input ? call.inputs : call.outputs;
  return tensors.empty() ? nullptr : &tensors.front();
}

// Every tensor of the call, kept alive.
inline std::vector<at::Tensor> tensors_of(const Call& call) {
  auto tensors = call.inputs.vec();
  tensors.insert(tensors.end(), call.outputs.begin(), call.outputs.end());
  return tensors;
}

// A call in progress.
class Operation {
 public:
  Operation() = default;
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Returns when the results are available, or throws. kNoTimeout: the backend's limit.
  virtual void wait(std::chrono::milliseconds timeout) = 0;
  // wait() at the end of its timeout, which has passed elsewhere: does not block for long.
  virtual void end_wait(std::chrono::milliseconds /*timeout*/) { wait(std::chrono::milliseconds(1)); }
  // Whether wait() would return or throw without blocking.
  virtual bool is_completed() = 0;
  // The sender of a finished receive.
  virtual int source_rank() const { return -1; }
  // The work of a call that may end on a device's stream; null for the others.
  virtual c10::intrusive_ptr<c10d::Work> stream_work() const { return {}; }
};

using OperationPtr = std::shared_ptr<Operation>;

// How a backend reports on a call that it starts.
enum class CallStage : std::uint8_t {
  posted,      // the other ranks can see the call
  may_block,   // start() may wait for other ranks from now on; reported first if both apply
  cannot_end,  // the same, in a call that no exception can end: note in unendable_call.h
};
using Report = c10::function_ref<void(CallStage)>;

class CallBackend {
 public:
  CallBackend() = default;
  virtual ~CallBackend() = default;
  CallBackend(const CallBackend&) = delete;
  CallBackend& operator=(const CallBackend&) = delete;

  // Takes a checked call. Returns nullptr when it is complete.
  virtual OperationPtr start(const Call& call, Report report) = 0;
  // This rank leaves after an error, so the calls of the others should end too. Nothing to do for a backend
  // whose others see that its connections close.
  virtual void break_off() noexcept {}
};

}  // namespace lockstep::comm
