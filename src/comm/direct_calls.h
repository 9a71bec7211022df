// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <lockstep/comm/c10d.h>
#include <lockstep/comm/call_record.h>
#include <lockstep/comm/reduce_op.h>

#include "comm/issue_listener.h"

namespace lockstep::comm {

// A call as its caller asks for it, arguments unchecked.
struct DirectCall {
  CallKind kind = CallKind::barrier;
  at::TensorList inputs = {};
  at::TensorList outputs = {};  // and the tensor of a call in place
  ReduceOp op = ReduceOp::SUM;  // of the reducing kinds
  int root = -1;                // of the rooted kinds
  int peer = -1;                // of send and recv
  int tag = 0;
  bool waits = true;  // else it must not take long: what is left is returned
};

// A backend that can do small calls from beginning to end without a Work. They are the same calls to
// the other ranks, which may make them asynchronously.
class DirectCalls {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual ~DirectCalls() = default;

  // Whether call_directly() takes the call. Only one that has passed all checks of arguments: the usual way
  // says what is wrong with the others.
  virtual bool takes(const DirectCall& call) const = 0;

  // `posted` is called as soon as the other ranks can see the call, and before any long wait; not of a
  // message that is done at once. nullptr once the call is done; where the other ranks do not come at once,
  // what is left to be waited for. Only a send can be asked not to wait.
  virtual WorkPtr call_directly(const DirectCall& call, const IssuedCall& issued,
                                c10::function_ref<void()> posted) = 0;
};

}  // namespace lockstep::comm
