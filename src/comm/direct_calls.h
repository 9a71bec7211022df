// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/c10d.h>
#include <lockstep/comm/reduce_op.h>

namespace lockstep::comm {

// A backend that can do small blocking calls from beginning to end without a Work. They are the same calls to
// the other ranks, which may make them asynchronously.
class DirectCalls {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual ~DirectCalls() = default;

  // Whether all_reduce_directly() takes such a tensor, which then has passed all checks of arguments.
  virtual bool takes(const at::Tensor& tensor, ReduceOp op) const = 0;

  // `number` is the call's in the group's log. nullptr once the call is done; where the other ranks do not
  // come at once, what is left to be waited for.
  virtual WorkPtr all_reduce_directly(const at::Tensor& tensor, ReduceOp op, std::uint64_t number) = 0;
  virtual WorkPtr barrier_directly(std::uint64_t number) = 0;
};

}  // namespace lockstep::comm
